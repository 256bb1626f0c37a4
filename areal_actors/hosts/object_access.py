"""Permissions of a remote worker for the files of the run.

They are derived from the messages that its actor declares, as on the bus.
"""

from __future__ import annotations

from typing import Final

from areal_actors.core.gateways import GATEWAY
from areal_actors.core.objects import CODE, MODEL, WEIGHTS, FileAccess
from areal_actors.supervision.nats_server import ACTORS, listener
from areal_bus.message import Reply, Request

FOLDERS: Final[dict[str, frozenset[str]]] = {
    "inference_worker": frozenset({CODE, MODEL, WEIGHTS}),
    GATEWAY: frozenset({CODE, MODEL}),
}
"""Folders of roles that need more than the code."""


def access_of(role: str, fold: str = "") -> FileAccess:
    """Returns the access of a worker with this role; `fold`: that of its actor, if it keeps snapshots."""
    declared = listener(role, ACTORS[role])
    replies = {kind.reply for kind in declared.asks if issubclass(kind, Request)}
    asked = {kind for kind in declared.receives if issubclass(kind, Request)}
    answers = {kind.reply for kind in asked} | {kind for kind in declared.sends if issubclass(kind, Reply)}
    return FileAccess(
        reads=frozenset(kind.subject for kind in (*declared.receives, *replies)),
        writes=frozenset(kind.subject for kind in (*declared.sends, *declared.asks, *answers)),
        removes=frozenset(kind.subject for kind in (*asked, *replies)),
        folders=FOLDERS.get(role, frozenset({CODE})),
        reads_images=role == "inference_worker",
        writes_images=role == GATEWAY,
        fold=fold,
    )
