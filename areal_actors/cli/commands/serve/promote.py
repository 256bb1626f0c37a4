"""`serve promote`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import positive_number, takes_folder, takes_json


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="the served model (default: the latest)")
    parser.add_argument(
        "--reward",
        default="",
        metavar="FILE.py:FUNCTION",
        help="compare a shadow's answers with the served ones by this function of prompt and answer",
    )
    parser.add_argument(
        "--most-divergence",
        type=positive_number,
        metavar="NATS",
        help="compute the divergence (KL) of both versions, and promote only if it is shown to be below",
    )
    parser.add_argument(
        "--rollback", dest="is_rollback", action="store_true", help="roll it back instead, also once promoted"
    )
    parser.add_argument("--dry-run", dest="is_dry_run", action="store_true", help="print the comparison only")
    takes_json(parser)
    takes_folder(parser)


DESCRIPTION = CommandDescription(
    group="serve, and learn from what is served",
    place=4,
    summary="promote the candidate of a served model",
    about=(
        "Compare the candidate of a served model (`[gateway.candidate]`) with the served version: rewards and guard"
        " metrics, each with limits that hold however often they are looked at. It is promoted if its reward is shown"
        " to be at least as good; otherwise nothing changes, and what is missing is printed, with exit status 1."
    ),
    do="run.promote:promote",
    add_arguments=_add_arguments,
)
