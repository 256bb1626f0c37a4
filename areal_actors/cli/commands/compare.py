"""`compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import takes_folder, takes_json


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="RUN|FILE", help="names or folders of runs, or exported logs")
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="a metric to show; may be repeated"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the curves to this image, as in curves.png")
    takes_json(parser)
    takes_folder(parser)


DESCRIPTION = CommandDescription(
    group="look at runs",
    place=4,
    summary="compare runs: recipes, results, curves",
    about=(
        "Print where the recipes of two or more runs differ, their results side by side, and the course of their"
        " metrics."
    ),
    do="compare:compare",
    add_arguments=_add_arguments,
)
