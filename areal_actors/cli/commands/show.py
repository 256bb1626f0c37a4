"""`show`."""

from __future__ import annotations

import argparse
from pathlib import Path

from areal_actors.cli.command import Action, CommandDescription, Options
from areal_actors.cli.shared_arguments import positive_count, takes_json, takes_run
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError
from areal_actors.core.lazy import LazyModule

ENDS = LazyModule("areal_actors.messages.episode_ends")
END = "end"
"""Value of --at for the end of the log."""
EPISODES = Action("show:show", ("last", "step", "task", "outcome", "tokens", "as_json"))
TRACE = Action("replay.trace:trace", ("trace", "attempt", "html", "as_json"))
STATE = Action("replay.state:state", ("at", "as_json"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    takes_run(parser)
    parser.add_argument(
        "episode", nargs="?", default="", metavar="EPISODE", help="name of an episode (default: a list of the latest)"
    )
    parser.add_argument(
        "--tokens", action="store_true", help="print each sampled token with its log-probability and weight version"
    )
    takes_json(parser)
    listed = parser.add_argument_group("episodes in the list")
    listed.add_argument(
        "--last", type=positive_count, default=20, metavar="COUNT", help="number of the latest (default: %(default)s)"
    )
    listed.add_argument("--step", type=int, metavar="NUMBER", help="only those that this step trained")
    listed.add_argument("--task", default="", metavar="ID", help="only those of this task")
    listed.add_argument(
        "--outcome", default="", choices=ENDS.OUTCOMES, metavar="OUTCOME", help=f"only {', '.join(ENDS.OUTCOMES)}"
    )
    traced = parser.add_argument_group("an episode as the tree of its calls")
    traced.add_argument(
        "--trace",
        action="store_true",
        help="every sampled token with the step that trained it and its advantage",
    )
    traced.add_argument(
        "--attempt",
        type=positive_count,
        metavar="NUMBER",
        help="another attempt (default: the exported one, else the latest)",
    )
    traced.add_argument("--html", type=Path, metavar="FILE", help="write one HTML file with coloured tokens instead")
    moment = parser.add_argument_group("the run at a moment of its log")
    moment.add_argument(
        "--at",
        default="",
        metavar="MOMENT",
        help=f"bound of the gate, groups in flight, batch, weights, evaluation; an event as 1200, a step as step-12,"
        f" seconds as 90s, or {END}",
    )


def _choose(options: Options, stated: dict[str, str]) -> str:
    if options.at:
        if options.episode:
            raise RecipeError(f"--at is about a whole run; leave {options.episode} out")
        options.at = "" if options.at == END else options.at
        return STATE.refuse_others(stated, "with --at")
    if options.trace or options.html or options.attempt:
        if not options.episode:
            raise RecipeError(
                f"--trace needs a run and an episode, as in `{COMMAND} show mine 12.3 --trace`; `{COMMAND} show mine`"
                " lists the episodes"
            )
        return TRACE.refuse_others(stated, "with --trace")
    return EPISODES.refuse_others(stated, "without --trace and --at")


DESCRIPTION = CommandDescription(
    group="look at runs",
    place=2,
    summary="show episodes of a run, one call by call, or the run at a moment",
    about=(
        "Print the latest episodes of a live, finished or exported run, or one episode call by call: prompt and"
        " completion as sampled, weight versions, reward, and the step that trained it. The run is not affected."
    ),
    do=_choose,
    add_arguments=_add_arguments,
)
