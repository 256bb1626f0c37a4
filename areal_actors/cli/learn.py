"""The command `learn`."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from areal_actors.cli.arguments import parse_command_line
from areal_actors.cli.check_static import measure_machine, resolve
from areal_actors.cli.command import Options
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.learn.plan import Choices, LearningPlan, limit_steps, plan_learning, shown_command
from areal_actors.reader.run_files import run_folder
from areal_actors.recipe.recipe import Recipe
from areal_actors.run import start
from areal_actors.supervised.recorded_session import RecordedRow
from areal_actors.training.algorithms.offline import Offline

if TYPE_CHECKING:
    from areal_actors.learn import support
else:
    support = LazyModule("areal_actors.learn.support")

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def learn(options: Options) -> int:
    """Learn from the recorded sessions of runs."""
    runs = [word for word in options.words if "=" not in word] or [""]
    settings = [word for word in options.words if "=" in word]
    seconds = read_seconds("--seconds", options.seconds) if options.seconds else 0.0
    choices = Choices(
        since=time.time() - read_seconds("--since", options.since) if options.since else 0.0,
        passes=options.passes,
        tokens=options.tokens,
        reward=options.reward,
        rehearse=options.rehearse,
        rehearse_share=options.rehearse_share,
    )
    names = [str(run_folder(run, options.folder).path) for run in runs]
    plan = plan_learning(names, choices, options.folder)
    words = ["run", str(plan.recipe), *settings]
    resolved = resolve(parse_command_line(words), measure=measure_machine)
    for line in plan.lines:
        _print(line)
    recipe = resolved.recipe
    steps = _check_log(plan, recipe, options.least_effective, seconds)
    if steps < recipe.steps:
        limit_steps(plan, steps)
        measured = resolved.calibration
        resolved = resolve(parse_command_line([*words, f"steps={steps}"]), measure=lambda *_: measured)
    _print(f"the same rows again, with other settings: `{shown_command(plan)} KEY=VALUE`")
    if options.dry_run:
        return 0
    return start.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)


def _check_log(plan: LearningPlan, recipe: Recipe, least: float, seconds: float) -> int:
    """Print and check the support of the log for the model; returns the number of steps within the time."""
    algorithm = recipe.algorithm.resolve()
    if not isinstance(algorithm, Offline):
        raise RecipeError(f"`algorithm.name`: found {algorithm.__struct_config__.tag}, expected offline; leave it out")
    rows = [msgspec.json.decode(line, type=RecordedRow) for line in plan.rows.read_bytes().splitlines()]
    meter = support.SupportMeter(recipe.model, algorithm, recipe.trainer, seed=recipe.seed)
    for source in dict.fromkeys(row.source for row in rows):
        measured = meter.measure([row for row in rows if row.source == source])
        if measured is not None:
            _print(f"{f'{source}: ' if source else ''}{measured.describe()}")
            support.refuse_weak_support(measured, least, source or "the log")
    if not seconds:
        return recipe.steps
    step = meter.time_step(rows, recipe.trainer.batch_size)
    steps = min(recipe.steps, int(seconds / step))
    _print(f"time: a step takes {step:.3g} s here; {steps} of {recipe.steps} steps in {seconds:g} s (--seconds)")
    if not steps:
        raise SetupError(f"--seconds: found {seconds:g}, but a step takes {step:.3g} s; allow more time")
    return steps


def read_seconds(option: str, text: str) -> float:
    """Returns the seconds of a time such as 90s, 30m, 24h or 7d.

    Raises:
        SetupError: it is not of this form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None or not float(match[1]):
        raise SetupError(
            f"{option}: found {text!r}; write a number of seconds, minutes, hours or days, as in 30m or 7d"
        )
    return float(match[1]) * UNITS[match[2]]


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
