"""Words of the commands that take a recipe: its files, and settings over them."""

from __future__ import annotations

import argparse
from pathlib import Path

from areal_actors.core.command import COMMAND

_HELP = """\
RECIPE is a TOML file, or the name of a recipe that comes with the package; later files override earlier ones. \
KEY=VALUE, or --KEY VALUE, overrides all files; the value is TOML or a bare word:

    {command} {verb} gsm8k_grpo
    {command} {verb} recipes/gsm8k_grpo.toml mine.toml steps=20 --seed 7

A relative path in a recipe is looked for beside the recipe first, then in the current directory."""


def describe_words(verb: str) -> str:
    """Returns the paragraphs about a recipe's words for the help of a command."""
    return _HELP.format(command=COMMAND, verb=verb)


def takes_recipe(parser: argparse.ArgumentParser) -> None:
    """Add the words, and the folder where `just` was called."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RECIPE|KEY=VALUE",
        help="recipe files (later ones override) and KEY=VALUE overrides",
    )
    takes_settings(parser)
    parser.add_argument(
        "--from",
        dest="origin",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder to search for a recipe that is not in the current directory",
    )


def takes_settings(parser: argparse.ArgumentParser) -> None:
    """Add the option `--set`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an override as an explicit option; may be repeated",
    )
