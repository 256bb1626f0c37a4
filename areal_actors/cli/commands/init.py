"""`init`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="NAME", help="folder to create; its last part is the name of the run")
    kinds = (
        "text: one call; tools: with a tool; environment: several turns; node: in JavaScript, without packages"
        " (default: %(default)s)"
    )
    parser.add_argument("--kind", choices=("text", "tools", "environment", "node"), default="text", help=kinds)
    source = (
        "a configuration of AReaL (YAML), TRL (YAML, JSON, a Python program) or verl (YAML, a script), and overrides"
        " KEY=VALUE: the recipe is its conversion, and conversion.md lists every key"
    )
    parser.add_argument("--from", dest="source", nargs="+", default=[], metavar="FILE", help=source)


DESCRIPTION = CommandDescription(
    group="prepare",
    place=1,
    summary="write a new agent with tasks, recipe, reward and test",
    about=(
        "Write a folder with an agent, its reward, its tasks, a recipe and a test, which run at once: change them step"
        " by step into your own. With the recipe as written, the embedded model learns on a CPU; nothing is downloaded."
    ),
    do="init:init",
    add_arguments=_add_arguments,
)
