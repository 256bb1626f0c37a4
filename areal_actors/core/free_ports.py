"""Free ports that stay free: outside of the range that the system takes for outgoing connections."""

from __future__ import annotations

import contextlib
import secrets
import socket

LOOPBACK = "127.0.0.1"
STABLE_PORTS = range(20_000, 32_000)
"""Below the ephemeral ranges of Linux (32768) and of RFC 6335 (49152): no outgoing connection takes such a port before
its server listens, or while a server that died is restarted."""
TRIES = 20


def find_free_ports(count: int = 1, host: str = LOOPBACK) -> int:
    """Returns the first of `count` ports in a row on which nothing listens.

    Raises:
        OSError: no port is free.
    """
    for candidate in (secrets.choice(STABLE_PORTS) for _ in range(TRIES)):
        with contextlib.suppress(OSError):
            return bind_ports(host, candidate, count)
    return bind_ports(host, 0, count)


def bind_ports(host: str, port: int, count: int) -> int:
    """Bind `count` ports in a row for a moment; returns the first, which the system chooses if it is 0.

    Raises:
        OSError: a port is in use, or beyond 65535.
    """
    if port + count > 1 << 16:
        raise OSError(f"ports {port} to {port + count - 1} do not exist")
    with contextlib.ExitStack() as probes:
        for number in range(count):
            probe = probes.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port + number))
            port = port or int(probe.getsockname()[1])
        return port
