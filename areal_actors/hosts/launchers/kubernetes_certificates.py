"""Kubernetes: certificates and keys of a recipe are in a Secret, which only the pod of the run mounts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.folder.certificate_files import named_certificate
from areal_actors.recipe.recipe import Recipe

FOLDER = "/tls"
"""Folder in which the pod of the run finds the files; each has the name of its setting."""
LEFT_OUT = "left out by --dry-run"


def secret_files(recipe: Recipe, *, shown: bool) -> dict[str, str]:
    """Returns the contents of certificates and keys by their settings; if they are `shown`, a text in place of each.

    Raises:
        SetupError: one cannot be used, or is no text.
    """
    files: dict[str, str] = {}
    for table, settings in (("bus", recipe.bus), ("gateway", recipe.gateway)):
        if not settings.certificate:
            continue
        if not shown:
            named_certificate(settings)
        for part in ("certificate", "certificate_key"):
            files[f"{table}.{part}"] = LEFT_OUT if shown else _text(f"{table}.{part}", getattr(settings, part))
    return files


def words_for(files: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the settings with which the run finds them."""
    return tuple(f"{name}={FOLDER}/{name}" for name in files)


def without_certificates(recipe: Recipe) -> Recipe:
    """Returns a recipe that names neither certificates nor keys."""
    none = {"certificate": "", "certificate_key": ""}
    bus, gateway = msgspec.structs.replace(recipe.bus, **none), msgspec.structs.replace(recipe.gateway, **none)
    return msgspec.structs.replace(recipe, bus=bus, gateway=gateway)


def _text(name: str, file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="ascii")
    except UnicodeDecodeError as error:
        raise SetupError(f"{name}: {file} has text outside of ASCII beside its PEM blocks; remove it") from error
