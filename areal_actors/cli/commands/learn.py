"""`learn`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import positive_count, positive_number, takes_folder
from areal_actors.core.command import COMMAND


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN|KEY=VALUE",
        help="runs whose logs have the sessions (default: the latest), the one whose model learns last; settings",
    )
    parser.add_argument(
        "--since", default="", metavar="TIME", help="only sessions that ended or were judged in this time, as 24h or 7d"
    )
    parser.add_argument(
        "--reward",
        default="",
        metavar="FILE.py:FUNCTION",
        help="function of feedback, prompt and answer that returns the reward, or None for none (default: feedback)",
    )
    parser.add_argument(
        "--passes", type=positive_number, default=4.0, metavar="N", help="passes over all rows (default: %(default)g)"
    )
    parser.add_argument(
        "--tokens", type=positive_count, default=0, metavar="N", help="largest number of trained tokens (default: any)"
    )
    parser.add_argument(
        "--seconds",
        default="",
        metavar="TIME",
        help="longest time of the training steps, as 90s or 2h, by that of a step on this machine (default: any)",
    )
    parser.add_argument(
        "--rehearse",
        action="append",
        default=[],
        metavar="RUN",
        help="mix in the newest rewarded episodes of an earlier run, so that what it learned is not forgotten",
    )
    parser.add_argument(
        "--rehearse-share",
        type=_share,
        default=0.2,
        metavar="SHARE",
        help="share of the rehearsed rows among all (default: %(default)g)",
    )
    parser.add_argument(
        "--least-effective",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="refuse a log with a smaller effective sample size (default: %(default)g)",
    )
    parser.add_argument("--dry-run", action="store_true", help="write rows and recipe, print both, and train nothing")
    takes_folder(parser)


def _share(text: str) -> float:
    number = positive_number(text)
    if number >= 1.0:
        raise argparse.ArgumentTypeError(f"found {text}, expected a number between 0 and 1")
    return number


DESCRIPTION = CommandDescription(
    group="serve, and learn from what is served",
    place=2,
    summary="learn from recorded sessions and their feedback",
    about=(
        "Learn from recorded sessions, without sampling: the rewards, edited answers and preferences in the logs of"
        " served models and of runs. Tokens are those that were sampled, with their recorded log-probabilities;"
        " baselines are fitted to other sessions, since there are no groups. Sessions without consent, or erased on"
        " request, are left out."
    ),
    epilog=(
        "KEY=VALUE changes the recipe that it writes, as in\n\n"
        f"    {COMMAND} learn online-serve --since 24h trainer.optimizer.lr=1e-6\n\n"
        f"An interrupted run goes on with `{COMMAND} resume`."
    ),
    do="learn:learn",
    add_arguments=_add_arguments,
)
