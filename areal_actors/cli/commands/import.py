"""`import`."""

from __future__ import annotations

import argparse
from pathlib import Path

from areal_actors.cli.command import CommandDescription


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="rows (.jsonl, .parquet, .csv), or trajectories (.json), or folders"
    )
    parser.add_argument("destination", type=Path, metavar="LOG", help="the log to write, as in episodes.xz")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="KIND=NAME",
        help="column of prompt, completion, reward, group or step, where it has another name",
    )
    parser.add_argument("--run", default="", metavar="NAME", help="name of the run (default: that of the log)")
    parser.add_argument("--model", default="", metavar="NAME", help="name of the model, for readers")


DESCRIPTION = CommandDescription(
    group="prove and exchange",
    place=3,
    summary="read rollouts of another program into a log",
    about=(
        "Write rollouts of another program as a log, which show, view, compare and what-if read as they read a run:"
        " rows with prompt, completion and reward (as verl, TRL and AReaL write them), or trajectories in ATIF."
    ),
    do="imports.command:import_rollouts",
    add_arguments=_add_arguments,
)
