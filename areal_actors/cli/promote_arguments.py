"""Arguments of the command `promote`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from areal_actors.cli.reader_arguments import positive_number, takes_folder, takes_json


def add_promote(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command."""
    about = (
        "Compare the candidate of a served model (`[gateway.candidate]`) with the served version: rewards and guard"
        " metrics, each with\nlimits that hold however often they are looked at. It is promoted if its reward is shown"
        " to be at least as good; otherwise\nnothing changes, and what is missing is printed, with exit status 1."
    )
    promoted = command("promote", "run.promote:promote", "promote the candidate of a served model", about)
    promoted.add_argument("run", nargs="?", default="", metavar="RUN", help="the served model (default: the latest)")
    promoted.add_argument(
        "--reward",
        default="",
        metavar="FILE.py:FUNCTION",
        help="compare a shadow's answers with the served ones by this function of prompt and answer",
    )
    promoted.add_argument(
        "--most-divergence",
        type=positive_number,
        metavar="NATS",
        help="compute the divergence (KL) of both versions, and promote only if it is shown to be below",
    )
    promoted.add_argument(
        "--rollback", dest="is_rollback", action="store_true", help="roll it back instead, also once promoted"
    )
    promoted.add_argument("--dry-run", dest="is_dry_run", action="store_true", help="print the comparison only")
    takes_json(promoted)
    takes_folder(promoted)
