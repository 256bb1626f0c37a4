"""Files of a run: really tried over HTTP by a worker of every role that may join.

`PYTHONPATH=.:tests python tests/support/permission_matrix.py` writes the table into docs/security.md;
`test_object_access.py` compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

from areal_actors.core.objects import BLOBS, CODE, FOLDERS, IMAGES, MODEL, SNAPSHOTS, WEIGHTS
from areal_actors.core.snapshots import Snapshot, SnapshotStore
from areal_actors.hosts.object_access import access_of
from areal_actors.hosts.object_server import ObjectServer
from areal_actors.messages import KINDS
from areal_actors.supervision.nats_server import ACTORS, listener
from areal_actors.vision.files import ImageFolder
from areal_actors.weights.folders import version_folder
from areal_bus.claims import BlobFolder, blob_name
from areal_bus.message import Event, Message, Reply, Request, Work

ROLES = ("rollout_worker", "reward_worker", "inference_worker", "session_manager")
COLUMNS = ("`rollout_worker`", "`reward_worker`", "`inference_worker`", "`gateway`")
FOLD = "session_manager-1"
BODY, ANOTHER = b"a body", b"another body"
ALLOWED, SOME, DENIED = "✓", "declared", "·"
BEGIN, END = "<!-- object matrix: begin -->\n", "<!-- object matrix: end -->"

Try = Callable[[str, str, bytes], int]
"""Sends a request; returns its status."""


class RunFiles:
    """A folder with what a run has, served to one worker of each role."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (code := folder / "agent.py").write_text("")
        for place in (folder / "model", version_folder(folder / "weights", 1)):
            place.mkdir(parents=True)
            (place / "config.json").write_text("{}")
        self.image = ImageFolder.of_run(folder).store(b"an image")
        taken = Snapshot(format=1, fold=FOLD, version=1, sequence=1, event="e", checksum=0, state=b"")
        SnapshotStore(folder / "snapshots").write(taken)
        self.server = ObjectServer("run", folder, {"agent.py": code})
        self.server.model = folder / "model"
        for role in ROLES:
            self.server.access[role] = access_of(role, FOLD if role == "session_manager" else "")
        self.server.start("127.0.0.1", 0)

    def store(self, kind: type[Message]) -> str:
        """Write the body of a message; returns its name."""
        name = blob_name(kind.subject, "first", BODY)
        BlobFolder(self.folder / "blobs").write(name, BODY)
        return name

    def content(self, name: str) -> bytes | None:
        """Returns the body of this name."""
        file = self.folder / "blobs" / name
        return file.read_bytes() if file.exists() else None

    def ask(self, role: str, method: str, path: str, body: bytes = b"") -> int:
        """Send a request with the token of a role; returns the status."""
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request(method, path, body=body or None, headers={"Authorization": f"Bearer {role}"})
            return connection.getresponse().status
        finally:
            connection.close()


def undeclared(role: str, files: RunFiles) -> list[str]:
    """Returns the kinds of messages whose bodies a role can read, write or remove although its actor does not receive
    or send them."""
    declared = listener(role, ACTORS[role])
    replies = {kind.reply for kind in declared.asks if issubclass(kind, Request)}
    answers = {kind.reply for kind in declared.receives if issubclass(kind, Request)}
    received, sent = {*declared.receives, *replies}, {*declared.sends, *declared.asks, *answers}
    transient = {kind for kind in received if issubclass(kind, Request | Reply)}
    wrong = []
    for kind in KINDS:
        name, new = files.store(kind), blob_name(kind.subject, f"new of {role}", BODY)
        found = (
            files.ask(role, "GET", BLOBS + name) == 200,
            files.ask(role, "PUT", BLOBS + new, BODY) == 200,
            files.ask(role, "DELETE", BLOBS + name) == 200,
        )
        if found != (kind in received, kind in sent, kind in transient):
            wrong.append(f"{role}: {kind.__name__} read, written, removed: {found}")
    return wrong


def table(files: RunFiles) -> str:
    """Returns the table, as Markdown: each attempt with every role."""
    rows = {
        "read bodies of messages that its actor does not receive": [
            _any(files, role, "GET", received=False) for role in ROLES
        ],
        "read bodies of messages that its actor receives": [_any(files, role, "GET", received=True) for role in ROLES],
        "add bodies of messages that its actor sends": [_any(files, role, "PUT", received=True) for role in ROLES],
        "add bodies of other messages": [_any(files, role, "PUT", received=False) for role in ROLES],
        "replace a body": [_any(files, role, "REPLACE", received=True) for role in ROLES],
        "remove bodies of events and work": [_any(files, role, "DELETE", received=False) for role in ROLES],
        "remove bodies of requests and replies that its actor receives": [
            _any(files, role, "DELETE", received=True) for role in ROLES
        ],
        **{
            f"pull `{name}`": [files.ask(role, "GET", FOLDERS + name) == 200 for role in ROLES]
            for name in (CODE, MODEL, f"{WEIGHTS}1")
        },
        "read an image": [files.ask(role, "GET", IMAGES + files.image) == 200 for role in ROLES],
        "add an image": [files.ask(role, "PUT", IMAGES + files.image, b"an image") == 200 for role in ROLES],
        "read snapshots of its own actor": [files.ask(role, "GET", SNAPSHOTS + FOLD) == 200 for role in ROLES],
        "read snapshots of another actor": [
            files.ask(role, "GET", f"{SNAPSHOTS}session_manager-0") == 200 for role in ROLES
        ],
    }
    head = ["| | " + " | ".join(COLUMNS) + " |", "|---|" + ":-:|" * len(ROLES)]
    lines = [
        f"| {name} | " + " | ".join(ALLOWED if allowed else DENIED for allowed in row) + " |"
        for name, row in rows.items()
    ]
    return "\n".join([*head, *lines]) + "\n"


def _any(files: RunFiles, role: str, method: str, *, received: bool) -> bool:
    """Returns True if a request succeeds for any message of those that the row names."""
    declared = listener(role, ACTORS[role])
    replies = {kind.reply for kind in declared.asks if issubclass(kind, Request)}
    mine = {*declared.receives, *replies}
    if method in ("PUT", "REPLACE"):
        mine = {
            *declared.sends,
            *declared.asks,
            *(kind.reply for kind in declared.receives if issubclass(kind, Request)),
        }
    if method == "DELETE":
        kinds = (
            [kind for kind in mine if issubclass(kind, Request | Reply)]
            if received
            else [k for k in KINDS if issubclass(k, Event | Work)]
        )
    else:
        kinds = [kind for kind in KINDS if (kind in mine) == received]
    allowed = []
    for kind in kinds:
        name = files.store(kind)
        if method == "REPLACE":
            files.ask(role, "PUT", BLOBS + name, ANOTHER)
            allowed.append(files.content(name) != BODY)
        else:
            allowed.append(files.ask(role, method, BLOBS + name, BODY if method == "PUT" else b"") == 200)
    return any(allowed)
