"""Encryption of a gateway that has a certificate."""

from __future__ import annotations

import ssl
from pathlib import Path

from areal_actors.core.errors import SetupError
from areal_actors.gateway.settings import GatewaySettings
from areal_bus.tls import Certificate


def encryption(config: GatewaySettings) -> ssl.SSLContext | None:
    """Returns the context of a gateway that encrypts; None for plain HTTP.

    Raises:
        SetupError: certificate or key cannot be used.
    """
    if not config.certificate:
        return None
    files = (Path(config.certificate).expanduser(), Path(config.certificate_key).expanduser())
    try:
        return Certificate(certificate=files[0], key=files[1], fingerprint="").context()
    except OSError as error:
        raise SetupError(
            f"gateway.certificate, gateway.certificate_key: cannot be used ({error}); name PEM files of a certificate"
            " and of its key, which has no password"
        ) from error
