"""The process of the server of a run's files, apart from the launcher.

It keeps strangers who reach its port away from everything else. Its first line of input has what it serves; each
further line is a change, which it answers with a line when it is in effect.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.objects import FileAccess
from areal_actors.core.values import Value
from areal_actors.folder.process_logs import log_to_file
from areal_actors.folder.run_folder import RunFolder
from areal_actors.hosts.object_server import ObjectServer
from areal_bus.tls import Certificate

NAME = "object_server"
EXIT_NO_ADDRESS = 7
"""Exit status when the address cannot be used; the reason is the last line of the output."""


class Grant(Value):
    """A worker that may use the files, by its token."""

    token: str
    access: FileAccess


class Change(Value):
    """A change of who is served, and with what; what is empty stays as it is."""

    grant: Grant | None = None
    revoke: str = ""
    """Token that is no longer valid."""
    model: str = ""
    """Folder of the model, once weights were published."""


class ServedObjects(Value):
    """Everything that the process needs at its start."""

    run: str
    folder: str
    """Folder of the run."""
    code: dict[str, str]
    """Files of the folder `code`, by their names in it."""
    weights_folder: str
    """`trainer.weights_folder`."""
    share: str
    """Identity of the weights' folders."""
    host: str
    port: int
    certificate: str = ""
    """PEM file; empty: nothing is encrypted."""
    certificate_key: str = ""
    grants: tuple[Grant, ...] = ()
    model: str = ""


class Listening(Value):
    """First answer: the port, or why there is none."""

    port: int = 0
    problem: str = ""


def main(_: list[str]) -> int:
    """Serve until standard input closes."""
    served = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServedObjects)
    log_to_file(RunFolder(Path(served.folder)).log_of(NAME), NAME)
    server = ObjectServer(
        served.run,
        Path(served.folder),
        {name: Path(path) for name, path in served.code.items()},
        served.weights_folder,
        share=served.share,
    )
    for grant in served.grants:
        _apply(server, Change(grant=grant))
    if served.model:
        _apply(server, Change(model=served.model))
    certificate = None
    if served.certificate:
        certificate = Certificate(
            certificate=Path(served.certificate), key=Path(served.certificate_key), fingerprint=""
        )
    try:
        server.start(served.host, served.port, certificate)
    except SetupError as error:
        _answer(Listening(problem=str(error)))
        return EXIT_NO_ADDRESS
    _answer(Listening(port=server.port))
    changes = msgspec.json.Decoder(Change)
    while line := sys.stdin.buffer.readline():
        _apply(server, changes.decode(line))
        _answer(Listening(port=server.port))
    os._exit(0)  # requests that are in progress would keep it


def _apply(server: ObjectServer, change: Change) -> None:
    if change.grant is not None:
        server.access[change.grant.token] = change.grant.access
    if change.revoke:
        server.access.pop(change.revoke, None)
    if change.model:
        server.weights_published(Path(change.model))


def _answer(answer: Listening) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
