"""Arguments of `verify`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from areal_actors.cli.reader_arguments import takes_json


def natural_number(text: str) -> int:
    """Returns a whole number of at least 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found '{text}'; write a whole number of at least 0")
    return int(text)


def add_verify(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add verify."""
    about = (
        "Check that a checkpoint came about as the log of its run states: the hash chain of the log, its audit, recipe,"
        " code and data,\nthe files of the checkpoint, rewards that are drawn at random and computed again by the rule,"
        " and optimizer steps that are drawn\nand computed again from the kept state before each. Exit status 1 if"
        " anything differs, with its place."
    )
    verified = command("verify", "replay.verify:verify", "check how a checkpoint came about", about)
    verified.add_argument("checkpoint", metavar="CHECKPOINT", help="its folder, as in runs/NAME/checkpoints/step-20")
    verified.add_argument(
        "--log", type=Path, metavar="FILE", help="an exported log, in place of the one in the folder of the run"
    )
    verified.add_argument(
        "--steps", type=natural_number, default=3, metavar="COUNT", help="steps to draw (default: %(default)s)"
    )
    verified.add_argument(
        "--completions",
        type=natural_number,
        default=1000,
        metavar="COUNT",
        help="scored episodes to draw (default: %(default)s)",
    )
    verified.add_argument(
        "--seed", type=natural_number, metavar="NUMBER", help="seed of the draws, to repeat them (default: a new one)"
    )
    verified.add_argument(
        "--proof", default="", metavar="DIGEST", help="digest of the proof that you were given beforehand"
    )
    takes_json(verified)
