"""The configuration of an embedded nats-server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from areal_bus.descriptors import highest_descriptor_limit
from areal_bus.errors import ServerUnavailable
from areal_bus.store_key import VARIABLE, encryption_config
from areal_bus.tls import Certificate

CONFIG_FILE: Final = "nats-server.conf"
LOOPBACK: Final = "127.0.0.1"
LOGIN_SECONDS: Final = 3
"""Time in which a new connection has to show its credentials."""
_ANY_PORT: Final = -1
_STORE_DESCRIPTORS: Final = 256
"""Descriptors that are left to the server's store, which cannot write without."""


class Ports(msgspec.Struct, frozen=True):
    """Ports of a server; -1 lets it choose. Only clients connect from other hosts."""

    client: int = _ANY_PORT
    monitoring: int = _ANY_PORT
    websocket: int = _ANY_PORT


def max_connections() -> int:
    """Returns the number of connections that a server here accepts, below its limit of descriptors."""
    limit = highest_descriptor_limit()
    return limit - min(_STORE_DESCRIPTORS, limit // 2)


def server_config(
    folder: Path, host: str, ports: Ports, sync_interval: str, certificate: Certificate | None
) -> dict[str, Any]:
    """Returns the configuration without users."""
    folder = folder.absolute()
    return {
        **({"tls": certificate.config()} if certificate is not None else {}),
        "listen": f"[{host}]:{ports.client}" if ":" in host else f"{host}:{ports.client}",
        "http": f"{LOOPBACK}:{ports.monitoring}",
        "websocket": {"listen": f"{LOOPBACK}:{ports.websocket}", "no_tls": True},
        "ports_file_dir": str(folder),
        "max_connections": max_connections(),
        "authorization": {"timeout": LOGIN_SECONDS},
        "max_payload": 1 << 20,
        "max_pending": 64 << 20,
        "write_deadline": "10s",
        "jetstream": {
            "store_dir": str(folder / "store"),
            "sync_interval": sync_interval,
            **encryption_config(folder),
        },
    }


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write the configuration, readable by this user only."""
    file = folder / CONFIG_FILE
    try:
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            # a variable is resolved only where it is not quoted
            opened.write(msgspec.json.encode(config).replace(f'"${VARIABLE}"'.encode(), f"${VARIABLE}".encode()))
    except OSError as error:
        raise ServerUnavailable(
            f"{file} cannot be written: {error}; free disk space, or choose another run folder"
        ) from error
