"""The folder of a run: what lies where, and the few small files through which its processes find each other."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from areal_actors.durable_files import PRIVATE_MODE, atomic_write
from areal_actors.errors import SetupError
from areal_actors.recipe.recipe import Recipe
from areal_actors.run_lock import LockHeld, holder, locked, share
from areal_actors.sessions.keys import admin_key
from areal_actors.values import Value

LOCK = "lock"
"""Held by the launcher for a run's life; it has the launcher's process id."""
PROCESSES_LOCK = "processes.lock"
"""Shared by all processes of a run."""
ORPHAN_SECONDS = 15.0
"""For processes of a killed run to notice that their launcher is gone."""
SECRETS = ("bus.json", "monitor.json", "nats/nats-server.conf", "nats/nats-server_*.ports")
"""What opens the bus of a run; of no use when it is over."""


class ServerAddress(Value):
    """How to reach the run's NATS server."""

    url: str
    """With name and password of the user that its reader is, where the server has users."""
    token: str = ""
    run: str
    pid: int
    """Of the supervisor."""


class BusAddresses(Value):
    """The ways to reach the run's NATS server, each with what it opens."""

    owner: ServerAddress
    """Everything: for the process that starts the run."""
    monitor: ServerAddress
    """Hearing everything and reading the log: for anybody who watches."""
    processes: dict[str, str] = {}
    """The URL of each process of the run; where there is none, the owner's."""

    def of(self, process: str) -> ServerAddress:
        """What a process of the run is given."""
        return msgspec.structs.replace(self.owner, url=self.processes.get(process, self.owner.url))


class RunFolder:
    """`runs/<run>/`: files and folders.

    Files: recipe.json, bus.json, monitor.json, admin_key, secret, served.json, metrics.jsonl, usage.json, reward.png.
    Folders: checkpoints, logs, tapes, model, nats, blobs and snapshots.
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
        self.snapshots = path / "snapshots"
        self._inside: ExitStack | None = None
        """Holds the folder itself, within `held`."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """No other process runs anything in this folder, or makes or renames one of its name, until this ends or the process does.

        Raises:
            SetupError: a live run holds it, or its processes have not ended yet; or the disk keeps no locks.
            OSError: it cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path.with_name(f".{self.path.name}.lock"), remove=True))
                self._inside = stack.enter_context(ExitStack())
                if self.path.is_dir():
                    self._hold_inside()
                    self._wait_for_processes()
            except LockHeld as held:
                raise SetupError(
                    f"run '{self.path.name}' is running{_named(held.pid)}; stop it first, or give this one another name: run=NAME"
                ) from held
            try:
                yield
            finally:
                self._inside = None

    def create(self, recipe: Recipe) -> None:
        """Make the folder, set an earlier run's aside under a number, and keep the resolved recipe."""
        if self.path.exists():
            number = 1
            while (aside := self.path.with_name(f"{self.path.name}.{number}")).exists():
                number += 1
            self.path.rename(aside)
        for folder in (self.path, self.checkpoints, self.logs, self.path / "tapes", self.blobs, self.nats):
            folder.mkdir(parents=True)
        if self._inside is not None:
            self._inside.close()
            self._hold_inside()
        self.keep(recipe)
        self._private("secret", secrets.token_bytes(32))
        self._private("admin_key", self.admin_key(recipe).encode())

    def _hold_inside(self) -> None:
        """Hold the folder itself, under whatever name it may be found."""
        assert self._inside is not None
        self._inside.enter_context(locked(self.path / LOCK))

    def _wait_for_processes(self) -> None:
        """Processes of a run whose launcher was killed end by themselves; until then they write into the folder."""
        for lock in (self.path / PROCESSES_LOCK, self.nats / "nats-server.lock"):
            if lock.exists():
                try:
                    with locked(lock, seconds=ORPHAN_SECONDS):
                        pass
                except LockHeld as held:
                    raise SetupError(
                        f"run '{self.path.name}' was killed, but processes of it still live and hold {lock}{_named(held.pid)}: end them"
                    ) from held

    def join(self) -> None:
        """Called by each process of a run: the folder is not used anew before it has ended."""
        share(self.path / PROCESSES_LOCK)

    def keep(self, recipe: Recipe) -> None:
        """Keep the resolved recipe for those who are started from here on."""
        atomic_write(self.path / "recipe.json", msgspec.json.encode(recipe), mode=PRIVATE_MODE)

    def keep_usage(self, usage: bytes) -> str:
        """Keep what the processes have used; returns a line about why not, empty if it is kept."""
        try:
            atomic_write(self.usage, usage)
        except OSError as error:
            return f"{self.usage} cannot be written: {error.strerror}\n"
        return ""

    def live_supervisor(self) -> str:
        """The process that supervises a run that lives here, in words; empty if there is none."""
        pid = holder(self.path / LOCK)
        return "" if pid is None else f"process {pid}" if pid else "a process that is just starting"

    def remove_secrets(self) -> list[str]:
        """Remove what opens the bus of a run that is over; returns the names of the files.

        `secret` and `admin_key` stay: agents outside keep their key when the run is resumed, and until then nothing listens.
        """
        found = [path for pattern in SECRETS for path in self.path.glob(pattern)]
        for path in found:
            path.unlink(missing_ok=True)
        return [path.name for path in found]

    def announce(self, server: ServerAddress, *, monitor: ServerAddress | None = None) -> None:
        """Say how to reach the bus, and how to watch it, which is the same unless it is given: `monitor.json` may be handed out."""
        self._private("bus.json", msgspec.json.encode(server))
        self._private("monitor.json", msgspec.json.encode(monitor or server))

    def withdraw(self) -> None:
        """There is no bus any more."""
        for name in ("bus.json", "monitor.json"):
            (self.path / name).unlink(missing_ok=True)

    def server(self) -> ServerAddress:
        """How to reach the bus."""
        return msgspec.json.decode((self.path / "bus.json").read_bytes(), type=ServerAddress)

    def monitor(self) -> ServerAddress:
        """How to watch the bus."""
        return msgspec.json.decode((self.path / "monitor.json").read_bytes(), type=ServerAddress)

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
        atomic_write(self.path / name, content, mode=PRIVATE_MODE)


def _named(pid: int) -> str:
    return f" (process {pid})" if pid else ""
