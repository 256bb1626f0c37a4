"""`what-if`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import splits_words, takes_json


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="RUN|FILE|KEY=VALUE", help="the run (default: the latest) or exported log; settings"
    )
    parser.add_argument(
        "--train", action="store_true", help="also repeat the trainer's steps, and compare losses and weights"
    )
    takes_json(parser)
    splits_words(parser)


DESCRIPTION = CommandDescription(
    group="look at runs",
    place=6,
    summary="compare what a run trained with what other settings would have",
    about=(
        "Give the recorded episodes of a run to batcher, credit assignment and algorithm with other settings, or score"
        " their outputs with another reward function, and print what would have been trained beside what was. Nothing"
        " is sampled: it is exact up to the first step that differs, which it names."
    ),
    do="replay.what_if:what_if",
    add_arguments=_add_arguments,
)
