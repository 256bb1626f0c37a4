"""`why`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import takes_json, takes_run


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    takes_run(parser)
    takes_json(parser)


DESCRIPTION = CommandDescription(
    group="look at runs",
    place=5,
    summary="print what limits a run, and what to change",
    about=(
        "Print what limits a live, finished or exported run: what the trainer spent its time on, which bound the"
        " staleness gate had reached and what was in flight while the trainer waited, all limits of concurrent"
        " episodes, the open waits of a live run, and what to change. The run is not affected."
    ),
    do="replay.why:why",
    add_arguments=_add_arguments,
)
