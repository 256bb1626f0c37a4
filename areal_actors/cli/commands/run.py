"""`run`."""

from __future__ import annotations

import argparse
from pathlib import Path

from areal_actors.cli.command import Action, CommandDescription, Options
from areal_actors.cli.recipe_words import describe_words, takes_recipe

HERE = Action("run:run", ("set", "origin"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    takes_recipe(parser)
    hosts = parser.add_argument_group("together with the hosts of the recipe's table [hosts]")
    hosts.add_argument(
        "--on",
        choices=("local", "slurm", "kubernetes", "ray"),
        help="slurm, kubernetes, ray: write a batch script, manifests or a Ray program, and print the command that"
        " submits it; local: start all hosts on this machine",
    )
    hosts.add_argument(
        "--output", type=Path, default=Path("launch"), metavar="FOLDER", help="where files go (default: %(default)s)"
    )
    hosts.add_argument("--dry-run", action="store_true", help="print the commands or the file; write and start nothing")
    follow = "on a cluster: act on the decisions of [autoscale] of the run, until SIGTERM; what is written starts it"
    hosts.add_argument("--follow", action="store_true", help=follow)


def _choose(options: Options, stated: dict[str, str]) -> str:
    return "launch:launch" if options.on else HERE.refuse_others(stated, "without --on")


DESCRIPTION = CommandDescription(
    group="train",
    place=1,
    summary="train with a recipe, here or on the hosts that it lists",
    about="Train with a recipe until its steps are done or Ctrl-C.",
    epilog=describe_words("run"),
    do=_choose,
    add_arguments=_add_arguments,
    takes_recipe=True,
)
