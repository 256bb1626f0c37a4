"""A gateway of another host.

It has settings there, the keys of its sessions, its snapshots, and its tokenizer, pulled without the weights.
"""

from __future__ import annotations

import shutil
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.objects import MODEL, SNAPSHOTS, RemoteObjects
from areal_actors.core.snapshots import Snapshot, read_snapshot
from areal_actors.folder.certificate_files import named_certificate
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import GatewayKeys
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import read_override
from areal_bus.server import EVERY_INTERFACE

DIFFERS = ("gateway.host", "gateway.port", "gateway.advertise", "gateway.certificate", "gateway.certificate_key")
"""Settings of a gateway that are those of its host."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
"""Ends of the names of files that no gateway reads."""
CHAT_MODEL = "chat_model"
"""Folder of the model without its weights."""


def gateway_recipe(recipe: Recipe, keys: GatewayKeys, settings: Sequence[str], bus_url: str) -> Recipe:
    """Returns the recipe for a gateway of this host.

    Unless `settings` of this host have another, its address is that towards the bus.
    """
    named = {setting.partition("=")[0].strip() for setting in settings}
    gateway, own = recipe.gateway, own_address(bus_url)
    host = gateway.host if "gateway.host" in named or gateway.host in EVERY_INTERFACE else own
    advertise = gateway.advertise if "gateway.advertise" in named else own if host in EVERY_INTERFACE else ""
    own_settings = msgspec.structs.replace(
        gateway, host=host, advertise=advertise, admin_key=keys.admin_key, **_certificate_here(settings)
    )
    return msgspec.structs.replace(recipe, gateway=own_settings)


def encrypts_here(settings: Sequence[str]) -> bool:
    """Returns True if a gateway of this host encrypts, or a proxy before it.

    Raises:
        SetupError: its certificate cannot be used.
    """
    files = _certificate_here(settings)
    advertise = _written_setting(settings, "advertise")
    if not any(files.values()):
        return advertise.startswith("https://")
    if not all(files.values()):
        raise SetupError(
            "gateway.certificate: certificate and certificate_key belong together; name both files with --set, or"
            " neither"
        )
    if not advertise:
        raise SetupError(
            "gateway.certificate: agents verify it for the name of this host, which is not known; add --set"
            " gateway.advertise=NAME"
        )
    return (
        named_certificate(GatewaySettings(certificate=files["certificate"], certificate_key=files["certificate_key"]))
        is not None
    )


def _certificate_here(settings: Sequence[str]) -> dict[str, str]:
    """Returns the files of this host's certificate; those of the run are on another host.

    Its process works in another folder.
    """
    named = {name: _written_setting(settings, name) for name in ("certificate", "certificate_key")}
    return {name: str(Path(file).expanduser().absolute()) if file else "" for name, file in named.items()}


def _written_setting(settings: Sequence[str], name: str) -> str:
    """Returns a setting of `[gateway]` of this host; empty if it is unset."""
    values = [
        read_override(setting).data["gateway"][name]
        for setting in settings
        if setting.partition("=")[0].strip() == f"gateway.{name}"
    ]
    return str(values[-1]) if values else ""


def gateway_address(recipe: Recipe, actor: str) -> str:
    """Returns the address of a gateway for agents, as far as it is known before it listens."""
    gateway = recipe.gateway.with_number(int(actor.rpartition("-")[2]))
    return gateway.url(gateway.port) if gateway.port or "://" in gateway.advertise else "a free port"


def own_address(url: str) -> str:
    """Returns the address of this host from which it reaches a server; nothing is sent."""
    parts = urlsplit(url.partition(",")[0])
    family = socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "", parts.port or 4222))
        return str(probe.getsockname()[0])


class GatewaySnapshots:
    """The snapshots of a gateway, kept in the folder of the run: its successor on any host has them."""

    def __init__(self, objects: RemoteObjects) -> None:
        self._objects = objects

    def __str__(self) -> str:
        return f"{self._objects}{SNAPSHOTS}"

    def write(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; blocks until it is on the disk of the run's host.

        Raises:
            OSError: it cannot be kept.
        """
        self._objects.write_snapshot(snapshot.fold, msgspec.msgpack.encode(snapshot))

    def sequences(self, fold: str) -> list[int]:
        """Returns the sequences of the snapshots of this fold, oldest first.

        Raises:
            OSError: the run's host does not answer.
        """
        return self._objects.snapshots(fold)

    def read(self, fold: str, sequence: int) -> Snapshot:
        """Returns the snapshot of a fold after this event.

        Raises:
            UnusableSnapshot: it cannot be read, is damaged, or is another one.
        """
        return read_snapshot(
            lambda: self._objects.read_snapshot(fold, sequence), f"{self}{fold}/{sequence}", fold, sequence
        )


class ChatModelPuller:
    """Finds the tokenizer and chat template of the run's model on this host."""

    def __init__(self, objects: RemoteObjects, folder: Path) -> None:
        self._objects, self._folder = objects, folder / CHAT_MODEL

    def __call__(self, model: str) -> Path:  # noqa: ARG002 - the run has one model, which its files name
        """Returns its folder here; pulls it if it is not there yet. Blocks.

        Raises:
            OSError: it cannot be pulled.
        """
        if not self._folder.is_dir():
            partial = self._folder.with_name(f".{CHAT_MODEL}-{uuid.uuid4().hex[:8]}")
            try:
                self._objects.pull(MODEL, partial, without=WEIGHTS)
                if not self._folder.is_dir():
                    partial.rename(self._folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return self._folder
