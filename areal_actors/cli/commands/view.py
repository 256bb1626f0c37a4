"""`view`."""

from __future__ import annotations

import argparse
from pathlib import Path

from areal_actors.cli.command import Action, CommandDescription, Options
from areal_actors.cli.shared_arguments import takes_json, takes_page_address, takes_run
from areal_actors.core.command import COMMAND

PAGE = Action("view:view", ("web", "terminal", "what_if", "host", "port", "bus"))
TERMINAL = Action("monitor:monitor", ("terminal", "subjects", "bus", "as_json", "prometheus"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    takes_run(parser, default="a list of all runs; in the terminal the latest")
    parser.add_argument(
        "subjects",
        nargs="?",
        default="",
        metavar="SUBJECTS",
        help="print these messages of a live run in the terminal, as in `trajectory.>`",
    )
    parser.add_argument(
        "--bus", type=Path, metavar="FILE", help="a live run's monitor.json, if its folder is not accessible"
    )
    page = parser.add_argument_group("the page for a browser (default)")
    page.add_argument("--web", action="store_true", help="serve the page, as without any option")
    takes_page_address(page)
    page.add_argument(
        "--what-if",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"lay the curves of `{COMMAND} what-if --json` over; may be repeated",
    )
    terminal = parser.add_argument_group("a live run in the terminal")
    terminal.add_argument("--terminal", action="store_true", help="watch it in the terminal instead")
    takes_json(terminal, "print every message whole, as one JSON object a line")
    terminal.add_argument(
        "--prometheus", default="", metavar="[HOST:]PORT", help="serve its metrics there instead, for Prometheus"
    )


def _choose(options: Options, stated: dict[str, str]) -> str:
    if not options.web and (options.terminal or options.subjects or options.as_json or options.prometheus):
        return TERMINAL.refuse_others(stated, "in the terminal")
    return PAGE.refuse_others(stated, "with the page")


DESCRIPTION = CommandDescription(
    group="look at runs",
    place=3,
    summary="watch runs in a browser, or one in the terminal",
    about=(
        "Serve pages of the runs of a folder, or of one live, finished or exported run, until Ctrl-C: curves, swim"
        " lanes, groups with their answers, tokens, batches, failures, limits and events, at any moment of the log. It"
        " prints its address. With --terminal, watch a live run here. Runs are not affected."
    ),
    do=_choose,
    add_arguments=_add_arguments,
)
