"""`join`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import positive_count
from areal_actors.core.command import COMMAND
from areal_actors.core.lazy import LazyModule

HOST_SETTINGS = LazyModule("areal_actors.core.host_settings")
ROLES: Final = ("inference_worker", "reward_worker", "rollout_worker")
"""Kinds of workers that may join a run of another host."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", nargs="?", default="", metavar="nats://HOST:PORT/RUN", help=f"as `{COMMAND} run` printed it"
    )
    parser.add_argument(
        "--role",
        choices=(*ROLES, "gateway"),
        default="rollout_worker",
        metavar="ROLE",
        help=f"kind of worker: {', '.join(ROLES)} or gateway (default: %(default)s)",
    )
    parser.add_argument(
        "--count", type=positive_count, default=1, metavar="NUMBER", help="workers, each in a process (default: 1)"
    )
    parser.add_argument(
        "--credential",
        type=Path,
        metavar="FILE",
        help="a copy of join.json of the run's folder, which also has the address",
    )
    parser.add_argument(
        "--token",
        default="",
        help=f"the password in that file instead; or in the variable {HOST_SETTINGS.JOIN_TOKEN}",
    )
    parser.add_argument(
        "--drain", type=float, default=30.0, metavar="SECONDS", help="time to finish episodes at the end (default: 30)"
    )
    waits = "time to wait for the run, and for the file of --credential, if they are not there yet (default: 0)"
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help=waits)
    parser.add_argument(
        "--folder", default="", help="where code, model and logs are kept (default: a temporary folder)"
    )
    settings = (
        "a setting that differs here: of [generation] or [actors], task.python, task.processes, gateway.host, …; may be"
        " repeated"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=settings)


DESCRIPTION = CommandDescription(
    group="train",
    place=4,
    summary="serve workers to a run of another host",
    about=(
        "Serve more workers to a live run of another host, which was started with `bus.host`: recipe, code, tokenizer,"
        " model and weights come from there over the network; this host needs the same version of areal-actors and the"
        " packages of the agent. At SIGTERM or Ctrl-C episodes in progress are finished, then the workers leave;"
        " nothing of the run is lost if they are killed."
    ),
    do="join:join",
    add_arguments=_add_arguments,
)
