"""The first process of an agent's container: connects to the run by Unix sockets, and serves episodes.

Agents find the gateway on a port of the loopback interface, whose connections go through a socket: the container needs
no network.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

from . import serving

CHUNK = 1 << 16


def main(sockets: str, root: str, port: str) -> None:
    """Serve until the control socket is closed."""
    os.chdir(root)
    listening = socket.create_server(("127.0.0.1", int(port)))
    threading.Thread(target=_relay_connections, args=(listening, f"{sockets}/gateway"), daemon=True).start()
    control = socket.socket(socket.AF_UNIX)
    control.connect(f"{sockets}/control")
    serving.main(control.detach())


def _relay_connections(listening: socket.socket, gateway: str) -> None:
    while True:
        inner, _ = listening.accept()
        threading.Thread(target=_relay, args=(inner, gateway), daemon=True).start()


def _relay(inner: socket.socket, gateway: str) -> None:
    with inner, socket.socket(socket.AF_UNIX) as outer, suppress(OSError):
        outer.connect(gateway)
        answers = threading.Thread(target=_copy, args=(outer, inner), daemon=True)
        answers.start()
        _copy(inner, outer)
        answers.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy to the end of the stream, and pass the end on."""
    with suppress(OSError):
        while chunk := source.recv(CHUNK):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
