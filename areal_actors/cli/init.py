"""The command `init`: copies a starter, an agent with its tasks, recipe, reward and test."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from areal_actors.cli.command import Options
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.programs import program
from areal_actors.recipe.paths import SHIPPED
from areal_actors.tasks.arithmetic import rows

STARTERS = SHIPPED.parent / "agents" / "starters"
TASKS = 1000
NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


def init(options: Options) -> int:
    """Write the folder, and print the commands that come next.

    Raises:
        RecipeError: the file of `--from` has no configuration that is known.
        SetupError: the folder exists or cannot be written, or its kind needs a program that is not installed.
    """
    folder = Path(options.path)
    run = NOT_IN_NAMES.sub("-", folder.absolute().name.lower()).strip("-")[:64]
    if not run:
        raise SetupError(f"{folder}: a run is named for the folder, by letters a to z and digits; found none")
    converted: Any = None
    if options.source:
        conversion = importlib.import_module("areal_actors.compat.convert.command")  # only here: its names of AReaL
        converted = conversion.convert_file(Path(options.source[0]), options.source[1:])
    if options.kind == "node" and shutil.which("node") is None:
        raise SetupError("--kind node: found no program `node`; install Node.js 18 or later, or choose another kind")
    try:
        shutil.copytree(STARTERS / options.kind, folder, ignore=shutil.ignore_patterns("__pycache__"))
        recipe = folder / "recipe.toml"
        recipe.write_text(recipe.read_text(encoding="utf-8").replace('"NAME"', f'"{run}"'), encoding="utf-8")
        if converted is not None:
            conversion.write_conversion(converted, recipe, run=run, source=options.source[0])
        (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in _tasks()), encoding="utf-8")
    except FileExistsError:
        raise SetupError(f"{folder}: exists already; name another folder") from None
    except OSError as error:
        raise SetupError(f"{folder}: cannot be written: {error.strerror}; name another folder") from error
    if converted is not None:
        sys.stdout.write(conversion.describe(converted) + "\n")
    _print_next(folder, sorted(path.name for path in folder.iterdir()))
    return 0


def _tasks() -> list[dict[str, str]]:
    """Returns word problems whose answer is a number alone, as most datasets have it."""
    return [row | {"answer": row["answer"].rpartition("#### ")[2]} for row in rows("train", TASKS, seed=0)]


def _print_next(folder: Path, names: list[str]) -> None:
    recipe = shlex.quote(str(folder / "recipe.toml"))
    needs = "" if find_spec("pytest") else "; needs `pip install pytest`"
    lines = (
        f"{folder}: {', '.join(names)}",
        f"  {program(COMMAND)} check {recipe}    validates the recipe and prints the plan",
        f"  {program(COMMAND)} run {recipe}    trains",
        f"  {program('python')} -m pytest {shlex.quote(str(folder))}    tests agent and reward{needs}",
        (
            "The model `embedded` knows word problems like those in tasks.jsonl. Of other tasks it learns what some of"
            " its first answers have"
        ),
        (
            f"right: the held-out result before the first step. `{program(COMMAND)} run {recipe} model=FOLDER` trains"
            " another model."
        ),
    )
    sys.stdout.write("\n".join(lines) + "\n")
