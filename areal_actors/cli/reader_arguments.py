"""Arguments of the commands that read a run's files and log.

They are runs, show, view, compare, replay, state, what-if, trace and why.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from areal_actors.core.command import COMMAND
from areal_actors.messages.episode_ends import OUTCOMES


def takes_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option `--folder`."""
    parser.add_argument(
        "--folder", type=Path, default=Path("runs"), help="where runs are written (default: %(default)s)"
    )


def splits_words(parser: argparse.ArgumentParser) -> None:
    """Let `words` be parsed to `run` and `settings`, and add the option `--folder`."""
    parser.set_defaults(settings_of_run=True)
    takes_folder(parser)


def takes_json(parser: argparse.ArgumentParser, about: str = "print the same as JSON, nothing else") -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", dest="as_json", action="store_true", help=about)


def takes_page_address(parser: argparse.ArgumentParser) -> None:
    """Add the options of a page's address."""
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of the page (default: %(default)s); off this machine it needs a token",
    )
    parser.add_argument("--port", type=int, default=0, help="port of the page (default: a free one)")


def positive_count(text: str) -> int:
    """Returns a whole number of at least 1.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found '{text}'; write a whole number of at least 1")
    return int(text)


def positive_number(text: str) -> float:
    """Returns a finite number above 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}, expected a number above 0")
    return number


def add_readers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add runs, show, view and compare."""
    about = "List the runs of a folder: status, steps, first and last reward and held-out result."
    listed = command("runs", "reader.listing:list_runs", "list the runs of a folder", about)
    takes_json(listed)
    takes_folder(listed)

    about = (
        "Print the latest episodes of a live, finished or exported run, or one episode call by call: prompt and"
        " completion as sampled,\nweight versions, reward, and the step that trained it."
    )
    shown = command("show", "show:show", "show episodes of a run, or one of them call by call", about)
    shown.add_argument(
        "run", nargs="?", default="", metavar="RUN|FILE", help="the run (default: the latest), or an exported log"
    )
    shown.add_argument(
        "episode", nargs="?", default="", metavar="EPISODE", help="name of an episode (default: a list of the latest)"
    )
    shown.add_argument(
        "--last",
        type=positive_count,
        default=20,
        metavar="COUNT",
        help="number of episodes in the list (default: %(default)s)",
    )
    shown.add_argument("--step", type=int, help="list only episodes that this step trained")
    shown.add_argument("--task", default="", metavar="ID", help="list only episodes of this task")
    shown.add_argument("--outcome", default="", choices=OUTCOMES, help="list only these")
    shown.add_argument(
        "--tokens", action="store_true", help="print each sampled token with its log-probability and weight version"
    )
    takes_json(shown, "print one JSON object per episode, nothing else")
    takes_folder(shown)

    about = (
        "Serve pages of the runs of a folder, or of one live, finished or exported run, until Ctrl-C: curves, swim"
        " lanes, groups with\ntheir answers, tokens, batches, failures, limits and events, at any moment of the log. It"
        " prints its address; runs are not\naffected."
    )
    viewed = command("view", "view:view", "show runs in a browser", about)
    viewed.add_argument(
        "run", nargs="?", default="", metavar="RUN|FILE", help="a run, or an exported log (default: a list of all runs)"
    )
    viewed.add_argument(
        "--what-if",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"lay the curves of `{COMMAND} what-if --json` over; may be repeated",
    )
    takes_page_address(viewed)
    takes_folder(viewed)

    about = (
        "Print where the recipes of two or more runs differ, their results side by side, and the course of their"
        " metrics."
    )
    compared = command("compare", "compare:compare", "compare runs: recipes, results, curves", about)
    compared.add_argument("words", nargs="+", metavar="RUN|FILE", help="names or folders of runs, or exported logs")
    compared.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="a metric to show; may be repeated"
    )
    compared.add_argument("--plot", type=Path, metavar="FILE", help="write the curves to this image, as in curves.png")
    takes_json(compared)
    takes_folder(compared)


def add_replays(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add replay, state and what-if."""
    about = (
        "Give the log of a live, finished or exported run to new actors, built as the run built them, and compare each"
        " event that they\nemit with the log: gate, task source, batcher, evaluator and example source, without"
        " inference and without training. The run is\nnot affected. Exit status 1 at a difference, which is printed"
        " with its event and the state of the actor.\n\nWith KEY=VALUE the actors have other settings than the run; the"
        " first difference is where they would have decided otherwise."
    )
    played = command("replay", "replay.command:replay", "replay a run from its log, and compare", about)
    played.add_argument(
        "words", nargs="*", metavar="RUN|FILE|KEY=VALUE", help="the run (default: the latest) or exported log; settings"
    )
    played.add_argument(
        "--actor",
        dest="actors",
        action="append",
        default=[],
        metavar="NAME",
        help="replay only this actor, as in batcher; may be repeated",
    )
    played.add_argument(
        "--trainer", action="store_true", help="compute every weight version again instead, and compare the checksums"
    )
    played.add_argument(
        "--all", dest="every", action="store_true", help="continue after the first difference, and count them"
    )
    takes_json(played)
    splits_words(played)

    about = (
        "Print the state of a run after an event of its log, after a step, or at a time: which bound the gate had"
        " reached,\ngroups and episodes in flight, the batch, the weights that each worker had, the evaluation. The run"
        " is not affected."
    )
    looked = command("state", "replay.state:state", "print the state of a run at any moment of its log", about)
    looked.add_argument(
        "run", nargs="?", default="", metavar="RUN|FILE", help="the run (default: the latest), or an exported log"
    )
    looked.add_argument(
        "--at",
        default="",
        metavar="MOMENT",
        help="event as 1200, step as step-12, or seconds as 90s (default: the end)",
    )
    takes_json(looked, "print the same as JSON, with all episodes in flight")
    takes_folder(looked)

    about = (
        "Give the recorded episodes of a run to batcher, credit assignment and algorithm with other settings, or score"
        " their outputs with\nanother reward function, and print what would have been trained beside what was. Nothing"
        " is sampled: it is exact up to the first\nstep that differs, which it names."
    )
    asked = command(
        "what-if", "replay.what_if:what_if", "compare what a run trained with what other settings would have", about
    )
    asked.add_argument(
        "words", nargs="*", metavar="RUN|FILE|KEY=VALUE", help="the run (default: the latest) or exported log; settings"
    )
    asked.add_argument(
        "--train", action="store_true", help="also repeat the trainer's steps, and compare losses and weights"
    )
    takes_json(asked)
    splits_words(asked)


def add_explanations(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add trace and why."""
    about = (
        "Print one episode of a live, finished or exported run as the tree of its calls, with every sampled token:"
        f" text, log-probability,\nweight version, whether a step trained it and with which advantage. `{COMMAND} show"
        " RUN` lists the episodes. The run is\nnot affected."
    )
    followed = command(
        "trace", "replay.trace:trace", "show an episode with all of its sampled tokens, and what trained them", about
    )
    followed.add_argument("run", metavar="RUN|FILE", help="the run, or an exported log")
    followed.add_argument("episode", metavar="EPISODE", help="name of the episode, as in 12.3")
    followed.add_argument(
        "--attempt",
        type=positive_count,
        metavar="NUMBER",
        help="another attempt (default: the exported one, else the latest)",
    )
    followed.add_argument("--html", type=Path, metavar="FILE", help="write one HTML file with coloured tokens instead")
    takes_json(followed)
    takes_folder(followed)

    about = (
        "Print what limits a live, finished or exported run: what the trainer spent its time on, which bound the"
        " staleness gate had\nreached and what was in flight while the trainer waited, all limits of concurrent"
        " episodes, the open waits of a live run, and\nwhat to change. The run is not affected."
    )
    explained = command("why", "replay.why:why", "print what limits a run, and what to change", about)
    explained.add_argument(
        "run", nargs="?", default="", metavar="RUN|FILE", help="the run (default: the latest), or an exported log"
    )
    takes_json(explained)
    takes_folder(explained)
