"""`serve tinker`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.core.lazy import LazyModule

TINKER = LazyModule("areal_actors.tinker.command")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = TINKER.TinkerOptions()
    parser.add_argument("--model", default=defaults.model, help="Hugging Face folder or id, or `embedded` (default)")
    parser.add_argument(
        "--name", default="", help="further name of the model, for programs that know certain names only"
    )
    parser.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=defaults.port, help="port to listen on; 0: a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--state", default=defaults.state, metavar="FOLDER", help="where checkpoints are written (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="COUNT", help="CPU threads of training, and of sampling (default: 1)"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: cuda if there is one)"
    )


DESCRIPTION = CommandDescription(
    group="serve, and learn from what is served",
    place=5,
    summary="serve the Tinker API on this machine",
    about=(
        "Serve a model through Thinking Machines' Tinker API until Ctrl-C: programs that use its client library train"
        " the model, save it, and sample from it, with TINKER_BASE_URL as printed. Every API key that begins with"
        " `tml-` is accepted."
    ),
    do="tinker:serve",
    add_arguments=_add_arguments,
)
