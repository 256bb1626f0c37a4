"""`serve gateway`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.shared_arguments import positive_count
from areal_actors.core.lazy import LazyModule

ENGINES = LazyModule("areal_actors.generation.engines")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", required=True, metavar="URL", help="the vLLM or SGLang server")
    parser.add_argument(
        "--model",
        default="",
        metavar="FOLDER|ID",
        help="its tokenizer: a folder, or an id of the hub (default: asks the server)",
    )
    parser.add_argument(
        "--kind",
        choices=tuple(reversed(ENGINES.server_engines())),
        default="",
        help="protocol of the server (default: asks the server)",
    )
    parser.add_argument(
        "--record", default="calls.jsonl", metavar="FILE", help="where calls are appended (default: %(default)s)"
    )
    parser.add_argument(
        "--redact",
        nargs="+",
        default=(),
        metavar="RULE",
        help="email, phone, credit_card, iban, ip_address, api_key, or FILE.py:FUNCTION: calls in which one matches are"
        " recorded without tokens and texts",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=8300, help="port to listen on; 0: a free one (default: %(default)s)"
    )
    parser.add_argument("--key", default="", help="API key of the clients (default: a new one, which is printed)")
    parser.add_argument(
        "--sessions", type=positive_count, default=256, metavar="COUNT", help="sessions at once (default: %(default)s)"
    )


DESCRIPTION = CommandDescription(
    group="serve, and learn from what is served",
    place=3,
    summary="record the calls of clients at an inference server, without a run",
    about=(
        "Record the calls of OpenAI and Anthropic clients at a vLLM or SGLang server, without a run: any client with"
        " the printed base URL and key works as it is. Each completed call is a line of JSON with its prompt ids,"
        " sampled ids and log-probabilities, as it is trained. Needs no GPU and no torch here; the server needs no"
        " plug-in."
    ),
    do="gateway:serve",
    add_arguments=_add_arguments,
)
