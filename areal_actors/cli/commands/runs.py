"""`runs`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import takes_folder, takes_json


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    takes_json(parser)
    takes_folder(parser)


DESCRIPTION = CommandDescription(
    group="look at runs",
    place=1,
    summary="list the runs of a folder",
    about="List the runs of a folder: status, steps, first and last reward and held-out result.",
    do="reader.listing:list_runs",
    add_arguments=_add_arguments,
)
