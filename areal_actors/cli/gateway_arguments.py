"""Arguments of the command `gateway`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from areal_actors.cli.reader_arguments import positive_count
from areal_actors.generation.engines import server_engines


def add_gateway_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command."""
    about = (
        "Record the calls of OpenAI and Anthropic clients at a vLLM or SGLang server, without a run: any client with"
        " the printed base\nURL and key works as it is. Each completed call is a line of JSON with its prompt ids,"
        " sampled ids and log-probabilities, as it\nis trained. Needs no GPU and no torch here; the server needs no"
        " plug-in."
    )
    served = command(
        "gateway", "gateway:serve", "record the calls of clients at an inference server, without a run", about
    )
    served.add_argument("--engine", required=True, metavar="URL", help="the vLLM or SGLang server")
    served.add_argument(
        "--model",
        default="",
        metavar="FOLDER|ID",
        help="its tokenizer: a folder, or an id of the hub (default: asks the server)",
    )
    served.add_argument(
        "--kind",
        choices=tuple(reversed(server_engines())),
        default="",
        help="protocol of the server (default: asks the server)",
    )
    served.add_argument(
        "--record", default="calls.jsonl", metavar="FILE", help="where calls are appended (default: %(default)s)"
    )
    served.add_argument(
        "--redact",
        nargs="+",
        default=(),
        metavar="RULE",
        help="email, phone, credit_card, iban, ip_address, api_key, or FILE.py:FUNCTION: calls in which one matches are"
        " recorded without tokens and texts",
    )
    served.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    served.add_argument(
        "--port", type=int, default=8300, help="port to listen on; 0: a free one (default: %(default)s)"
    )
    served.add_argument("--key", default="", help="API key of the clients (default: a new one, which is printed)")
    served.add_argument(
        "--sessions", type=positive_count, default=256, metavar="COUNT", help="sessions at once (default: %(default)s)"
    )
