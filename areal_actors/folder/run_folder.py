"""Folder of a run: paths, and the small files through which its processes find each other."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.durable_files import PRIVATE_MODE, atomic_write, read_only, write_refusal
from areal_actors.core.errors import SetupError
from areal_actors.core.private_folders import make_private
from areal_actors.core.values import Value
from areal_actors.folder.run_lock import LockHeld, holder, lock_file, share
from areal_actors.gateway.sessions.keys import admin_key, feedback_key
from areal_actors.recipe.recipe import Recipe
from areal_bus.payload import read_dictionaries

LOCK = "lock"
"""Lock file that the launcher holds while the run lives; contains the launcher's process id."""
PROCESSES_LOCK = "processes.lock"
"""Lock file shared by all processes of a run."""
ORPHAN_SECONDS = 15.0
"""Maximum wait for processes of a killed run to notice that their launcher has ended."""
SECRETS = ("bus.json", "join.json", "monitor.json", "nats/nats-server.conf", "tls/key.pem", "nats/nats-server_*.ports")
"""Files with credentials for the bus of a run, removed when it is over."""


class ServerAddress(Value):
    """Address of the run's NATS server."""

    url: str
    """URL, with the reader's user and password if the server has users."""
    token: str = ""
    run: str
    pid: int
    """Process id of the supervisor."""


class BusAddresses(Value):
    """Addresses of the run's NATS server, by permissions."""

    owner: ServerAddress
    """Address with all permissions, for the process that starts the run."""
    monitor: ServerAddress
    """Read-only address, for monitors."""
    processes: dict[str, str] = {}
    """URL for each process of the run; a missing one is the owner's."""
    joiner: ServerAddress | None = None
    """Address for hosts whose workers join; None if none may."""

    def of(self, process: str) -> ServerAddress:
        """Returns the address for a process of the run."""
        return msgspec.structs.replace(self.owner, url=self.processes.get(process, self.owner.url))


DEFAULT_FOLDER = "runs"
"""Default of a recipe's `folder`."""


class RunFolder:
    """`runs/<run>/`: files and folders, which only the run's user can enter.

    Files: recipe.json, working_folder, bus.json, monitor.json, join.json, admin_key, secret, served.json,
    metrics.jsonl, usage.json, phases.json, reward.png; and history.sqlite with history.lock, which commands that read
    the run write.
    Folders: checkpoints, logs, tapes, model, nats, blobs, snapshots and tasks (of an environment).
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
        self.tasks = path / "tasks"
        self._inside: ExitStack | None = None
        """Lock of the folder itself, within `held`."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the run's folder and name against other processes, until the context or the process ends.

        Raises:
            SetupError: a live run holds it, its processes have not ended yet, or the file system does not support
                locks.
            OSError: it cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(lock_file(self.path.with_name(f".{self.path.name}.lock"), remove=True))
                self._inside = stack.enter_context(ExitStack())
                if self.path.is_dir():
                    make_private(self.path)
                    self._hold_inside()
                    self._wait_for_processes()
            except LockHeld as held:
                raise SetupError(
                    f"run '{self.path.name}' is running{_process_text(held.pid)}; stop it first, or give this one"
                    " another name: run=NAME"
                ) from held
            try:
                yield
            finally:
                self._inside = None

    def create(self, recipe: Recipe) -> None:
        """Create the folder, after renaming an earlier run's to a numbered one, and write the resolved recipe."""
        if self.path.exists():
            self.path.rename(first_free(self.path.parent, f"{self.path.name}."))
        make_private(self.path)
        for folder in (self.checkpoints, self.logs, self.path / "tapes", self.blobs, self.nats):
            folder.mkdir()
        if self._inside is not None:
            self._inside.close()
            self._hold_inside()
        self.keep(recipe)
        self._private("working_folder", os.fsencode(self._from_here(Path.cwd())))
        self._private("secret", secrets.token_bytes(32))
        self._private("admin_key", self.admin_key(recipe).encode())
        self._private("feedback_key", feedback_key(self.secret()).encode())

    def _hold_inside(self) -> None:
        """Lock the folder itself, independent of its name."""
        assert self._inside is not None
        self._inside.enter_context(lock_file(self.path / LOCK))

    def _wait_for_processes(self) -> None:
        """Wait for processes of a run whose launcher was killed: until they end, they write to the folder."""
        for lock in (self.path / PROCESSES_LOCK, self.nats / "nats-server.lock"):
            if lock.exists():
                try:
                    with lock_file(lock, seconds=ORPHAN_SECONDS):
                        pass
                except LockHeld as held:
                    raise SetupError(
                        f"run '{self.path.name}' was killed, but some of its processes still run and hold"
                        f" {lock}{_process_text(held.pid)}: end them"
                    ) from held

    def join(self) -> None:
        """Hold the shared lock of the run's processes, so that the folder is not reused before this process ends."""
        share(self.path / PROCESSES_LOCK)

    def check_writable(self) -> None:
        """Check that a run that is resumed can write to its folders.

        Raises:
            SetupError: it cannot; names the folder.
        """
        for folder in (self.path, self.checkpoints, self.logs, self.blobs, self.nats, self.snapshots):
            if folder.is_dir() and (refusal := write_refusal(folder)):
                raise read_only(
                    f"run '{self.path.name}' cannot be resumed", folder, refusal, f"`{COMMAND} resume {self.path.name}`"
                )

    def keep(self, recipe: Recipe) -> None:
        """Write the resolved recipe, for processes started later."""
        atomic_write(self.path / "recipe.json", msgspec.json.encode(recipe), mode=PRIVATE_MODE)

    def keep_usage(self, usage: bytes) -> str:
        """Write the resource usage of the processes; returns an error line, empty on success."""
        try:
            atomic_write(self.usage, usage)
        except OSError as error:
            return f"{self.usage} cannot be written: {error.strerror}\n"
        return ""

    def live_supervisor(self) -> str:
        """Returns a description of the process that supervises a live run; empty if there is none."""
        pid = holder(self.path / LOCK)
        return "" if pid is None else f"process {pid}" if pid else "a process that is just starting"

    def remove_secrets(self) -> list[str]:
        """Remove the bus credentials of a run that is over; returns the names of the files.

        `secret` and `admin_key` stay, so that external agents keep their keys when the run resumes.
        """
        paths = [path for pattern in SECRETS for path in self.path.glob(pattern)]
        for path in paths:
            path.unlink(missing_ok=True)
        return [path.name for path in paths]

    def announce(self, server: ServerAddress, *, monitor: ServerAddress | None = None) -> None:
        """Write the address of the bus; for monitors, by default the same with what reads messages.

        `monitor.json` may be handed out.
        """
        self._private("bus.json", msgspec.json.encode(server))
        self._private(
            "monitor.json",
            msgspec.json.encode({**msgspec.to_builtins(monitor or server), "dictionaries": read_dictionaries()}),
        )

    def invite(self, joiner: ServerAddress) -> Path:
        """Write the credential with which remote workers join; returns the file, to be copied to them."""
        self._private("join.json", msgspec.json.encode(joiner))
        return self.path / "join.json"

    def withdraw(self) -> None:
        """Remove the addresses of the bus."""
        for name in ("bus.json", "join.json", "monitor.json"):
            (self.path / name).unlink(missing_ok=True)

    def server(self) -> ServerAddress:
        """Returns the address of the bus."""
        return msgspec.json.decode((self.path / "bus.json").read_bytes(), type=ServerAddress)

    def monitor(self) -> ServerAddress:
        """Returns the address of the bus for monitors."""
        return msgspec.json.decode((self.path / "monitor.json").read_bytes(), type=ServerAddress)

    def recipe(self) -> Recipe:
        """Returns the resolved recipe."""
        return msgspec.json.decode((self.path / "recipe.json").read_bytes(), type=Recipe)

    def working_folder(self) -> Path:
        """Returns the folder in which the run was started, from which relative paths of its recipe are meant.

        It is the current folder for a run of another version, or if that folder is gone.
        """
        try:
            started = (self.path / os.fsdecode((self.path / "working_folder").read_bytes())).resolve()
        except FileNotFoundError:
            return Path.cwd()
        return started if started.is_dir() else Path.cwd()

    def _from_here(self, folder: Path) -> str:
        """Returns a folder relative to the run's if that lies in it, as they move together, else absolute."""
        run = self.path.absolute()
        return os.path.relpath(folder, run) if run.is_relative_to(folder) else str(folder)

    def secret(self) -> bytes:
        """Returns the secret from which session keys are derived."""
        return (self.path / "secret").read_bytes()

    def keep_secret(self, secret: bytes) -> None:
        """Write the secret of the run, for a gateway of another host."""
        self._private("secret", secret)

    def admin_key(self, recipe: Recipe) -> str:
        """Returns the key for the gateway's endpoints for external agents."""
        return admin_key(self.secret(), recipe.gateway.admin_key)

    def log_of(self, process: str) -> Path:
        """Returns the path of the process's structured log."""
        return self.logs / f"{process}.jsonl"

    def output_of(self, process: str) -> Path:
        """Returns the path of the process's output."""
        return self.logs / f"{process}.out"

    def failure_of(self, process: str) -> Path:
        """Returns the path of the reason for the process's last failure."""
        return self.logs / f"{process}.failure"

    def tape_of(self, instance: str) -> Path:
        """Returns the path of a new tape for an actor."""
        return first_free(self.path / "tapes", f"{instance}.", ".tape")

    def _private(self, name: str, content: bytes) -> None:
        atomic_write(self.path / name, content, mode=PRIVATE_MODE)


def first_free(folder: Path, before: str, after: str = "") -> Path:
    """Returns the first path `{before}{number}{after}` of a folder that does not exist, with numbers from 1 on."""
    return next(path for number in count(1) if not (path := folder / f"{before}{number}{after}").exists())


def find_run(run: str, folder: Path) -> tuple[RunFolder | None, str]:
    """Returns the run of this name in a folder, or at this path, or None; and a text that lists the runs there.

    An empty name is the latest run.
    """
    recipes = sorted(folder.absolute().glob("*/recipe.json"), key=lambda path: path.stat().st_mtime)
    names = [path.parent.name for path in recipes]
    hint = f"runs there: {', '.join(names)}" if names else "there is no run"
    if names and run in ("", *names):
        return RunFolder(folder.absolute() / (run or names[-1])), hint
    return (RunFolder(Path(run).absolute()) if run and (Path(run) / "recipe.json").is_file() else None), hint


def _process_text(pid: int) -> str:
    return f" (process {pid})" if pid else ""
