"""The folder of a run: what lies where, and the few small files through which its processes find each other."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from areal_actors.recipe.recipe import Recipe
from areal_actors.sessions.keys import admin_key
from areal_actors.values import Value


class ServerAddress(Value):
    """How to reach the run's NATS server."""

    url: str
    token: str = ""
    run: str
    pid: int
    """Of the supervisor."""


class RunFolder:
    """`runs/<run>/`: files (recipe.json, bus.json, admin_key, served.json, metrics.jsonl, usage.json, reward.png) and folders.

    The folders are checkpoints, logs, tapes, model, nats and blobs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.episodes = path / "episodes.jsonl"
        self.usage = path / "usage.json"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        self.model = path / "model"
        self.served = path / "served.json"
        self.blobs = path / "blobs"
        self.nats = path / "nats"

    def create(self, recipe: Recipe) -> None:
        """Make the folder, set an earlier run's aside under a number, and keep the resolved recipe."""
        if self.path.exists():
            number = 1
            while (aside := self.path.with_name(f"{self.path.name}.{number}")).exists():
                number += 1
            self.path.rename(aside)
        for folder in (self.path, self.checkpoints, self.logs, self.path / "tapes", self.blobs, self.nats):
            folder.mkdir(parents=True)
        self.keep(recipe)
        self._private("secret", secrets.token_bytes(32))
        self._private("admin_key", self.admin_key(recipe).encode())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else holds the folder meanwhile; whoever dies holds it no more.

        Raises:
            BlockingIOError: somebody holds it.
            OSError: it cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)

    def keep(self, recipe: Recipe) -> None:
        """Keep the resolved recipe for those who are started from here on."""
        (self.path / "recipe.json").write_bytes(msgspec.json.encode(recipe))

    def live_supervisor(self) -> int:
        """Process id of the supervisor of a run that still lives here; 0 if there is none."""
        try:
            pid = self.server().pid
            os.kill(pid, 0)
        except (OSError, msgspec.MsgspecError):
            return 0
        return pid

    def announce(self, server: ServerAddress) -> None:
        """Say how to reach the bus."""
        self._private("bus.json", msgspec.json.encode(server))

    def server(self) -> ServerAddress:
        """How to reach the bus."""
        return msgspec.json.decode((self.path / "bus.json").read_bytes(), type=ServerAddress)

    def recipe(self) -> Recipe:
        """The resolved recipe."""
        return msgspec.json.decode((self.path / "recipe.json").read_bytes(), type=Recipe)

    def secret(self) -> bytes:
        """What session keys are derived from."""
        return (self.path / "secret").read_bytes()

    def admin_key(self, recipe: Recipe) -> str:
        """What opens the gateway's endpoints for agents outside the run."""
        return admin_key(self.secret(), recipe.gateway.admin_key)

    def log_of(self, process: str) -> Path:
        """The process's structured log."""
        return self.logs / f"{process}.jsonl"

    def output_of(self, process: str) -> Path:
        """What the process prints."""
        return self.logs / f"{process}.out"

    def failure_of(self, process: str) -> Path:
        """Why the process failed last."""
        return self.logs / f"{process}.failure"

    def tape_of(self, instance: str) -> Path:
        """A new tape for this life of an actor."""
        life = 1
        while (tape := self.path / "tapes" / f"{instance}.{life}.tape").exists():
            life += 1
        return tape

    def _private(self, name: str, content: bytes) -> None:
        path = self.path / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
