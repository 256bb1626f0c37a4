"""Arguments that several commands share, and the kinds of their values."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def takes_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option `--folder`."""
    parser.add_argument(
        "--folder", type=Path, default=Path("runs"), help="where runs are written (default: %(default)s)"
    )


def takes_run(parser: argparse.ArgumentParser, metavar: str = "RUN|FILE", default: str = "the latest") -> None:
    """Add the name of a run, and the option `--folder`; `default` describes what no name means."""
    exported = ", or an exported log" if "FILE" in metavar else ""
    parser.add_argument("run", nargs="?", default="", metavar=metavar, help=f"the run (default: {default}){exported}")
    takes_folder(parser)


def splits_words(parser: argparse.ArgumentParser) -> None:
    """Let `words` be parsed to `run` and `settings`, and add the option `--folder`."""
    parser.set_defaults(settings_of_run=True)
    takes_folder(parser)


def takes_json(parser: argparse._ActionsContainer, about: str = "print the same as JSON, nothing else") -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", dest="as_json", action="store_true", help=about)


def takes_page_address(parser: argparse._ActionsContainer) -> None:
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


def natural_number(text: str) -> int:
    """Returns a whole number of at least 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found '{text}'; write a whole number of at least 0")
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
