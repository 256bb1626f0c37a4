"""Certificates that a recipe names, of `[bus]` and of `[gateway]`, with their keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.gateway.settings import GatewaySettings
from areal_bus.errors import CertificateUnusable
from areal_bus.tls import Certificate

if TYPE_CHECKING:
    from areal_bus import certificates
else:
    certificates = LazyModule("areal_bus.certificates")


def named_certificate(settings: BusSettings | GatewaySettings) -> Certificate | None:
    """Returns the certificate of a table; None if it names none.

    Raises:
        SetupError: a file cannot be used on this host; names the setting.
    """
    if not settings.certificate:
        return None
    try:
        return certificates.read_certificate(
            Path(settings.certificate).expanduser(), Path(settings.certificate_key).expanduser()
        )
    except CertificateUnusable as error:
        table = "bus" if isinstance(settings, BusSettings) else "gateway"
        raise SetupError(f"{table}.{error.part}: {error}") from error


def bus_certificate(settings: BusSettings, folder: Path) -> Certificate:
    """Returns the certificate of one start of a run.

    It is a copy, which stays as it is while the server reads it again, or a new one.

    Raises:
        SetupError: that of the recipe cannot be used.
    """
    given = named_certificate(settings)
    return certificates.copy_certificate(given, folder) if given is not None else certificates.make_certificate(folder)
