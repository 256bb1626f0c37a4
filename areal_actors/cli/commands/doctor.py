"""`doctor`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import takes_folder, takes_json


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    takes_json(parser)
    takes_folder(parser)


DESCRIPTION = CommandDescription(
    group="prepare",
    place=5,
    summary="print what this machine has and lacks for a run",
    about=(
        "Print what this machine has for a run: packages, nats-server, devices, memory, disk, inference servers, and"
        " the abilities of the engines. Exit status 1 if a run with the embedded defaults cannot start here; each"
        " problem has its remedy. Starts nothing."
    ),
    do="run.doctor:doctor",
    add_arguments=_add_arguments,
)
