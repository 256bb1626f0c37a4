"""`check`."""

from __future__ import annotations

import argparse
from typing import Any

from areal_actors.cli.command import CommandDescription, Options
from areal_actors.cli.recipe_words import describe_words, takes_recipe
from areal_actors.core.lazy import LazyModule

DEVICES = LazyModule("areal_actors.core.devices")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    takes_recipe(parser)
    parser.add_argument("--full", action="store_true", help="print the whole resolved recipe and plan, every table")
    parser.add_argument(
        "--devices",
        type=_devices,
        metavar="COUNT[xGIB]",
        help="check for another machine: its number of CUDA devices and their memory, as 8 or 8x80; 0: without any",
    )
    parser.add_argument(
        "--static", action="store_true", help="read settings only: load no data, agent or reward, and play no task"
    )
    parser.add_argument(
        "--data",
        action="store_true",
        help=(
            "also look at every row: references that the reward cannot read, prompts against the limits, duplicates,"
            " overlap"
        ),
    )
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="print recipe, profile and reason as JSON, nothing else"
    )


def _devices(text: str) -> Any:
    """Returns the `CudaDevices` that a text describes."""
    try:
        return DEVICES.pretended_cuda(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found '{text}'; write COUNT, as 8, or COUNTxGIB, as 8x80") from None


def _choose(options: Options, _: dict[str, str]) -> str:
    is_static = options.static or options.as_json or options.devices
    return "check_static:check" if is_static else "check:check"


DESCRIPTION = CommandDescription(
    group="prepare",
    place=3,
    summary="validate a recipe, and let its agent play a task with given answers",
    about=(
        "Print the plan of a run and the settings that the recipe changes; then open the data, load agent and reward,"
        " and let them play a task with given answers in place of a model. Nothing is written. Exit status 2, with"
        " every error, if the recipe is invalid."
    ),
    epilog=describe_words("check"),
    do=_choose,
    add_arguments=_add_arguments,
    takes_recipe=True,
)
