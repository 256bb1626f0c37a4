"""`python -m areal_actors.compat.areal program.py …`: runs a program that imports `areal`, unchanged.

`python -m areal_actors.compat.areal --recipe FILE.yaml [KEY=VALUE …]` prints the recipe of a configuration.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from areal_actors.compat.areal.aliases import FOLDER, install
from areal_actors.compat.areal.config import PPOConfig
from areal_actors.compat.areal.load_config import read_config
from areal_actors.compat.areal.recipe_file import recipe_toml
from areal_actors.compat.areal.to_recipe import recipe_tables
from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import ArealError, RecipeError

USAGE = (
    f"usage: python -m {__package__} PROGRAM.py [ARGUMENTS…]\n       python -m {__package__} --recipe FILE.yaml"
    " [KEY=VALUE…]\n"
)


def main(words: list[str]) -> int:
    """Run a program, or print a recipe; returns the exit status."""
    if not words or words[0] in ("-h", "--help"):
        (sys.stdout if words else sys.stderr).write(USAGE)
        return 0 if words else 2
    try:
        if words[0] == "--recipe":
            sys.stdout.write(recipe_text(words[1:]))
        else:
            run_program(words)
    except ArealError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def run_program(words: list[str]) -> None:
    """Run a program with its arguments as `python PROGRAM.py …` does; its child processes can import `areal`, too.

    Raises:
        RecipeError: there is no such file.
    """
    if not Path(words[0]).is_file():
        raise RecipeError(f"{words[0]}: there is no such file; {USAGE}")
    install()
    program = str(Path(words[0]).resolve().parent)
    # the current folder comes last, for modules such as `examples.math` of a clone; children look where this one does
    paths = (str(FOLDER), os.environ.get("PYTHONPATH", ""), program, str(Path.cwd()))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sys.argv = words
    sys.path[0] = program
    sys.path.append(str(Path.cwd()))
    runpy.run_path(words[0], run_name="__main__")


def recipe_text(words: list[str]) -> str:
    """The recipe of a configuration file with overrides, as TOML; its agent and dataset are for the reader to add.

    Raises:
        RecipeError: a key has no counterpart; the message lists all.
    """
    if not words:
        raise RecipeError(f"found no YAML file; {USAGE}")
    config, reported = read_config(words[0], words[1:], PPOConfig)
    steps = config.total_train_steps or config.total_train_epochs
    tables = recipe_tables(config, steps=steps, cuda=detect_cuda(), discounts=True)
    tables["task"] = {"agent": "path.py:Class", "dataset": config.train_dataset.path, **tables["task"]}
    return "".join(f"# without effect here: {key}\n" for key in reported) + recipe_toml(tables)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
