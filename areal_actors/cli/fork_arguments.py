"""Arguments of `fork`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from areal_actors.cli.reader_arguments import takes_folder
from areal_actors.core.command import COMMAND


def add_fork(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add fork."""
    about = (
        "Begin another run at a checkpoint of one that has ended, with other settings: weights, optimizer and position"
        " in the data are\nthose of the checkpoint, the log begins with that of the run, and recorded episodes that"
        " the settings leave as they are\nare not sampled again. The fork has its own folder and name; the run is not"
        " changed."
    )
    epilog = (
        "Several forks at once, run one after another:\n\n"
        f"    {COMMAND} fork RUN --at step-120 --arm slow trainer.optimizer.lr=1e-5 --arm fast"
        " trainer.optimizer.lr=1e-4\n\n"
        f"An interrupted fork goes on with `{COMMAND} resume NAME`."
    )
    forked = command(
        "fork", "fork:fork", "begin another run at a checkpoint of one, with other settings", about, epilog
    )
    forked.add_argument("words", nargs="*", metavar="RUN|KEY=VALUE", help="the run (default: the latest); settings")
    forked.add_argument("--at", required=True, metavar="step-N", help="the checkpoint")
    forked.add_argument("--name", default="", metavar="NAME", help="name of the fork")
    forked.add_argument(
        "--arm",
        action="append",
        nargs="+",
        default=[],
        metavar=("NAME", "KEY=VALUE"),
        help="a fork of this name with these settings, beside those of all; may be repeated",
    )
    forked.add_argument(
        "--other-code", action="store_true", help="also fork a run that another version of areal-actors made"
    )
    forked.add_argument("--dry-run", action="store_true", help="print what would be shared, and write nothing")
    forked.set_defaults(settings_of_run=True)
    takes_folder(forked)
