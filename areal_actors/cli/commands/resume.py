"""`resume`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.recipe_words import takes_settings
from areal_actors.cli.shared_arguments import splits_words


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="RUN|KEY=VALUE", help="the run (default: the latest), and overrides from now on"
    )
    parser.add_argument(
        "--from",
        dest="checkpoint",
        default="",
        metavar="step-N",
        help=(
            "go back to this checkpoint and retrain the later steps from the log (default: the newest; step-0: all"
            " steps)"
        ),
    )
    takes_settings(parser)
    splits_words(parser)


DESCRIPTION = CommandDescription(
    group="train",
    place=2,
    summary="resume an interrupted or failed run",
    about=(
        "Resume a run that was interrupted, failed or was killed, from its last checkpoint and its log: steps after the"
        " checkpoint are trained again from the same trajectories, unfinished episodes are run again, and nothing is"
        " counted twice."
    ),
    epilog=(
        "Settings of placement and speed may change, as `trainer.microbatch_tokens=2048` after a trainer that ran out"
        " of memory; settings of what is learned may not: for those, fork the run at a checkpoint."
    ),
    do="resume:resume",
    add_arguments=_add_arguments,
)
