"""`explain`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.core.command import COMMAND


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("settings", nargs="*", metavar="SETTING|TABLE", help="dotted names (default: all settings)")
    parser.add_argument("--json-schema", action="store_true", help="print the JSON schema of recipe files, for editors")


DESCRIPTION = CommandDescription(
    group="prepare",
    place=4,
    summary="describe settings: type, default, meaning",
    about=(
        "Describe settings of a recipe, or all settings of a table, as in\n\n"
        f"    {COMMAND} explain trainer.microbatch_tokens gateway"
    ),
    do="explain:explain",
    add_arguments=_add_arguments,
)
