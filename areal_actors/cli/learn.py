"""The command `learn`."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from areal_actors.cli.arguments import Options, parse_command_line
from areal_actors.cli.check_static import resolve
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.learn.plan import LearningPlan, plan_learning, shown_command
from areal_actors.reader.run_files import run_folder
from areal_actors.recipe.load import Resolved
from areal_actors.run import start
from areal_actors.supervised.recorded_session import RecordedRow
from areal_actors.training.algorithms.offline import Offline

if TYPE_CHECKING:
    from areal_actors.learn import support
else:
    support = LazyModule("areal_actors.learn.support")

UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


def learn(options: Options) -> int:
    """Learn from the recorded sessions of runs."""
    runs = [word for word in options.words if "=" not in word] or [""]
    settings = [word for word in options.words if "=" in word]
    since = time.time() - _seconds(options.since) if options.since else 0.0
    plan = plan_learning(
        [str(run_folder(run, options.folder).path) for run in runs],
        since=since,
        passes=options.passes,
        tokens=options.tokens,
        reward=options.reward,
        folder=options.folder,
    )
    resolved = resolve(parse_command_line(["run", str(plan.recipe), *settings]), measures=True)
    for line in plan.lines:
        _print(line)
    _check_support(plan, resolved, options.least_effective)
    _print(f"the same rows again, with other settings: `{shown_command(plan)} KEY=VALUE`")
    if options.dry_run:
        return 0
    return start.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)


def _check_support(plan: LearningPlan, resolved: Resolved, least: float) -> None:
    recipe = resolved.recipe
    algorithm = recipe.algorithm.resolve()
    if not isinstance(algorithm, Offline):
        raise RecipeError(f"`algorithm.name`: found {algorithm.__struct_config__.tag}, expected offline; leave it out")
    rows = [msgspec.json.decode(line, type=RecordedRow) for line in plan.rows.read_bytes().splitlines()]
    measured = support.measure_support(rows, recipe.model, algorithm, recipe.trainer, seed=recipe.seed)
    if measured is not None:
        _print(measured.describe())
        support.refuse_weak_support(measured, least)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text)
    if match is None:
        raise SetupError(f"--since: found {text!r}; write a number of minutes, hours or days, as in 30m, 24h or 7d")
    return float(match[1]) * UNITS[match[2]]


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
