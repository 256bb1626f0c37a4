"""`fork`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import splits_words
from areal_actors.core.command import COMMAND


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="RUN|KEY=VALUE", help="the run (default: the latest); settings")
    parser.add_argument("--at", required=True, metavar="step-N", help="the checkpoint")
    parser.add_argument("--name", default="", metavar="NAME", help="name of the fork")
    parser.add_argument(
        "--arm",
        action="append",
        nargs="+",
        default=[],
        metavar=("NAME", "KEY=VALUE"),
        help="a fork of this name with these settings, beside those of all; may be repeated",
    )
    parser.add_argument(
        "--other-code", action="store_true", help="also fork a run that another version of areal-actors made"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be shared, and write nothing")
    splits_words(parser)


DESCRIPTION = CommandDescription(
    group="train",
    place=3,
    summary="begin another run at a checkpoint of one, with other settings",
    about=(
        "Begin another run at a checkpoint of one that has ended, with other settings: weights, optimizer and position"
        " in the data are those of the checkpoint, the log begins with that of the run, and recorded episodes that the"
        " settings leave as they are are not sampled again. The fork has its own folder and name; the run is not"
        " changed."
    ),
    epilog=(
        "Several forks at once, run one after another:\n\n"
        f"    {COMMAND} fork RUN --at step-120 \\\n"
        "        --arm slow trainer.optimizer.lr=1e-5 \\\n"
        "        --arm fast trainer.optimizer.lr=1e-4\n\n"
        f"An interrupted fork goes on with `{COMMAND} resume NAME`."
    ),
    do="fork:fork",
    add_arguments=_add_arguments,
)
