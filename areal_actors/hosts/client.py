"""Serves workers of a live run of another host.

Joins it, pulls what they need, keeps their leases, and ends them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM, Signals
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import structlog
import uvloop

from areal_actors import __version__
from areal_actors.core.errors import SetupError
from areal_actors.core.module_command import module_command
from areal_actors.core.objects import CODE, RemoteObjects
from areal_actors.core.private_folders import make_or_keep_private, take_private
from areal_actors.folder.process_logs import log_to_terminal
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.hosts.client_recipe import recipe_here
from areal_actors.hosts.portable_recipe import code_digest
from areal_actors.hosts.run_connection import (
    CONNECT_SECONDS,
    RETRY_SECONDS,
    JoinOptions,
    await_listener,
    connect_to_run,
)
from areal_actors.messages import JoinAnswer, JoinRun, LeaveRun, RenewLease
from areal_actors.processes.process import EXIT_FATAL, EXIT_START_FAILED, has_tensors
from areal_actors.processes.remote_environment import HURRY, JoinedWorker
from areal_actors.processes.remote_gateway import encrypts_here, gateway_address, gateway_recipe
from areal_actors.recipe.needed_extras import check_worker_extras
from areal_actors.recipe.recipe import Recipe
from areal_actors.supervision.nats_server import JOINER
from areal_actors.supervision.run_session import on_interrupt
from areal_actors.supervision.supervisor import child_environment, is_own_end, reason_of_end
from areal_actors.weights.folders import SHARED_MEMORY, is_writable, lock_path
from areal_bus.base import Stamp
from areal_bus.errors import BusError, NoReply, NoResponder, PermissionDenied, ServerUnavailable
from areal_bus.message import Reply, Request
from areal_bus.nats import NatsBus
from areal_bus.users import without_credentials

R = TypeVar("R", bound=Reply)

ANSWER_SECONDS = 30.0
"""Maximum wait for the admission of a worker."""
RENEW_SECONDS = 1.0
FINISHED, FAILED = 0, 1
MAX_DEATHS, WINDOW_SECONDS = 5, 60.0
"""Workers that may die within this time; each is replaced by another."""

logger = structlog.get_logger(__name__)


def join(options: JoinOptions) -> int:
    """Serve workers until the run ends or this process is asked to; returns the exit status.

    Raises:
        SetupError: the run does not admit them, cannot be reached any more, or they cannot start here.
        BusError: the bus cannot be reached.
    """
    log_to_terminal()
    encrypts_here(options.settings)  # files that cannot be used are refused before anything starts
    with _place(options.folder) as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_join(options, RunFolder(folder)))


@contextmanager
def _place(folder: str) -> Iterator[Path]:
    """Yield the folder for pulled files."""
    if folder:
        make_or_keep_private(Path(folder), "--folder")
        yield Path(folder).absolute()
        return
    with tempfile.TemporaryDirectory(prefix="areal-join-") as temporary:
        yield Path(temporary)


async def _join(options: JoinOptions, folder: RunFolder) -> int:
    stopped = asyncio.Event()
    listens = not options.wait_seconds or await await_listener(options, stopped)
    if stopped.is_set():
        return FINISHED
    bus = await connect_to_run(options, CONNECT_SECONDS if listens else RETRY_SECONDS)
    try:
        return FINISHED if stopped.is_set() else await JoinedHost(options, folder, bus).serve()
    finally:
        await bus.close()


@dataclass
class Member:
    """A worker of this host: its process, and the task that waits for its end."""

    name: str
    process: asyncio.subprocess.Process
    ended: asyncio.Task[int]
    evicted: str = ""
    """Reason why the run let it go."""

    def send(self, number: Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass(eq=False)
class JoinedHost:
    """The workers of one `areal-actors join`."""

    options: JoinOptions
    folder: RunFolder
    bus: NatsBus
    members: dict[str, Member] = field(default_factory=dict)
    recipe: Recipe | None = None
    spares: int = 0
    """Workers that the run admits when it loses another."""
    stopping: bool = False
    ended: str | None = None
    """Error with which the run has ended, empty if it completed its recipe; None while it is live."""

    def __post_init__(self) -> None:
        self._answered = time.monotonic()
        self._signalled = asyncio.Event()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._stack = contextlib.ExitStack()
        self._start_failed = False
        """True if the last worker that died had not served yet."""
        self._weights: Path | None = None

    async def serve(self) -> int:
        """Start the workers and watch them until all have ended; returns the exit status."""
        on_interrupt(self._signalled, self._stop)
        try:
            for _ in range(self.options.count):
                if not self.stopping:
                    await self._add()
            spares = f"; {self.spares} of {self.options.count} wait to take the place of another" if self.spares else ""
            sys.stderr.write(
                f"joined run '{self.options.address.run}' as {', '.join(self.members) or 'a spare'}{spares}\n"
            )
            while self.members or (self.spares and not self.stopping):
                await self._look()
        finally:
            await self._abandon()
            self._stack.close()
        if self.ended is not None:
            sys.stderr.write(f"run '{self.options.address.run}' has ended{f': {self.ended}' if self.ended else ''}\n")
        return FAILED if self.ended else FINISHED

    async def _abandon(self) -> None:
        """Kill the workers that are left after an error, and report it to the run, if that can be reached."""
        for member in self.members.values():
            member.send(Signals.SIGKILL)
        await asyncio.gather(*(member.process.wait() for member in self.members.values()))
        for name in self.members:
            with contextlib.suppress(BusError):
                await self._ask(LeaveRun(worker=name, reason="its host has given up"), timeout=RENEW_SECONDS)

    def _stop(self, name: str) -> None:
        """End all workers: at the first signal they finish their episodes, at the second they stop at once."""
        rest, number = (" at once", HURRY) if self.stopping else ("; again: at once", SIGTERM)
        sys.stderr.write(f"{name}: {', '.join(self.members) or 'this host'} leave the run{rest}\n")
        self.stopping = True
        for member in self.members.values():
            member.send(number)

    async def _look(self) -> None:
        """Wait a moment for the end of a worker.

        Then renew the leases of the others, and have spares join where they can.
        """
        waits = [member.ended for member in self.members.values()]
        if waits:
            await asyncio.wait(waits, timeout=RENEW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(RENEW_SECONDS)
        for member in [member for member in self.members.values() if member.ended.done()]:
            await self._over(member)
        if self.members or self.spares:
            await self._renew()
        if self.spares and not self.stopping:
            self.spares -= 1
            await self._add()

    async def _renew(self) -> None:
        try:
            answer = await self._ask(RenewLease(workers=tuple(self.members)), timeout=RENEW_SECONDS * 5)
        except ServerUnavailable as error:
            raise SetupError(
                f"run '{self.options.address.run}' is gone, or was started again with other credentials: {error}"
            ) from error
        except (NoReply, NoResponder) as error:
            silent = time.monotonic() - self._answered
            limit = self.recipe.watchdog.bus_seconds if self.recipe is not None else ANSWER_SECONDS
            if silent > limit:
                late = f"has not answered for {silent:.0f} s (watchdog.bus_seconds = {limit:g})"
                raise SetupError(f"run '{self.options.address.run}' {late}: {error}") from error
            return
        self._answered = time.monotonic()
        for name, reason in answer.gone.items():
            if (member := self.members.get(name)) is not None and not member.evicted:
                member.evicted = reason
                member.send(Signals.SIGKILL)
        if answer.ended is not None and self.ended is None:
            self.ended, self.stopping = answer.ended, True
            for member in self.members.values():
                member.send(HURRY)

    async def _over(self, member: Member) -> None:
        """Report the end of a worker to the run, and replace one that has died."""
        del self.members[member.name]
        code = member.ended.result()
        orderly = code in (0, -SIGTERM, -HURRY) and self.stopping
        reason = "" if orderly else reason_of_end(self.folder, member.name, code, member.evicted)
        with contextlib.suppress(NoReply, NoResponder):
            await self._ask(LeaveRun(worker=member.name, reason=reason), timeout=RENEW_SECONDS * 5)
        if self.stopping:
            return
        logger.warning("a worker died", worker=member.name, reason=reason)
        own = is_own_end(self.folder, member.name, code)
        if own and (code == EXIT_FATAL or (code == EXIT_START_FAILED and self._start_failed)):
            raise SetupError(f"{member.name}: {reason}")
        self._start_failed = own and code == EXIT_START_FAILED
        now = time.monotonic()
        if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < WINDOW_SECONDS:
            raise SetupError(
                f"{MAX_DEATHS + 1} workers died within {WINDOW_SECONDS:g} s; the last: {member.name}: {reason}"
            )
        self._deaths.append(now)
        await self._add()

    async def _add(self) -> None:
        """Join the run with another worker, and start its process; one that has no place yet is a spare."""
        options = self.options
        encrypts = encrypts_here(options.settings)
        request = JoinRun(
            role=options.role, host=socket.gethostname(), version=__version__, code=code_digest(), encrypts=encrypts
        )
        answer = await self._admission(request)
        if answer.later:
            self.spares += 1
            return
        if answer.refused:
            raise SetupError(f"run '{options.address.run}' does not admit a {options.role}: {answer.refused}")
        assert answer.objects is not None
        objects_host = answer.objects.host or urlsplit(options.address.url).hostname or ""
        place = f"[{objects_host}]" if ":" in objects_host else objects_host
        url = f"http://{place}:{answer.objects.port}"
        if answer.objects.fingerprint:
            url = f"https://{place}:{answer.objects.port}#{answer.objects.fingerprint}"
        if self.recipe is None:
            await self._prepare(answer, RemoteObjects(url, answer.objects.token))
        weights = self._shared_memory(answer.objects.share)
        joined = JoinedWorker(
            objects=url,
            token=answer.objects.token,
            share=answer.objects.share,
            weights=str(weights),
            drain_seconds=options.drain_seconds,
            actor=answer.gateway.actor if answer.gateway is not None else "",
        )
        joined.keep(self.folder, answer.worker)
        await self._spawn(answer)
        if joined.actor and self.recipe is not None:
            sys.stderr.write(f"{answer.worker} serves {joined.actor} at {gateway_address(self.recipe, joined.actor)}\n")

    async def _admission(self, request: JoinRun) -> JoinAnswer:
        """Returns the answer of the run, which may just be starting."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return await self._ask(request, timeout=ANSWER_SECONDS)
            except (NoReply, NoResponder, PermissionDenied) as error:
                if time.monotonic() > until or isinstance(error, PermissionDenied):
                    place = without_credentials(self.options.address.url)
                    raise SetupError(
                        f"there is no run '{self.options.address.run}' at {place} that workers may join: {error}"
                    ) from error
            await asyncio.sleep(RENEW_SECONDS)

    async def _prepare(self, answer: JoinAnswer, objects: RemoteObjects) -> None:
        """Write the recipe, and pull the code that it names."""
        self.recipe = recipe_here(answer.recipe, self.options.settings)
        if answer.gateway is not None:
            self.recipe = gateway_recipe(self.recipe, answer.gateway, self.options.settings, self.options.address.url)
            self.folder.keep_secret(answer.gateway.secret)
        check_worker_extras(self.recipe, self.options.role)
        self.folder.logs.mkdir(exist_ok=True)
        self.folder.keep(self.recipe)
        code = self.folder.path / CODE
        try:
            await asyncio.to_thread(objects.pull, CODE, code)
        except OSError as error:
            raise SetupError(
                f"the code of run '{self.options.address.run}' cannot be pulled from {objects}: {error}"
            ) from error

    def _shared_memory(self, share: str) -> Path:
        """Returns the folder for weight versions, shared by this host's workers and removed with the last of them."""
        if self._weights is None:
            root = SHARED_MEMORY if is_writable(SHARED_MEMORY) else self.folder.path
            self._weights = root / f"areal-joined-{self.options.address.run}-{share}"
            take_private(self._weights)
            self._stack.enter_context(_holding(self._weights))
        return self._weights

    async def _spawn(self, answer: JoinAnswer) -> None:
        assert self.recipe is not None
        name, url = answer.worker, self.options.address.url
        if answer.user:
            parts = urlsplit(url)
            url = parts._replace(
                netloc=f"{quote(answer.user)}:{answer.password}@{parts.netloc.rpartition('@')[2]}"
            ).geturl()
        module = "tensor_process" if has_tensors(self.recipe, name) else "process"
        with self.folder.output_of(name).open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *module_command(f"areal_actors.processes.{module}", str(self.folder.path), name),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self.folder.path / CODE,
                env=child_environment(self.recipe, {self.options.role}),
            )
        assert process.stdin is not None
        process.stdin.write(
            msgspec.json.encode(ServerAddress(url=url, run=self.options.address.run, pid=os.getpid())) + b"\n"
        )
        self.members[name] = Member(name, process, asyncio.create_task(process.wait()))
        if self.stopping:  # the signal came while it was admitted and started
            self.members[name].send(SIGTERM)

    async def _ask(self, request: Request[R], *, timeout: float) -> R:
        stamp = Stamp(id=uuid.uuid4().hex, sender=JOINER, time=time.time())
        return await self.bus.request(request, stamp, timeout=timeout)


@contextmanager
def _holding(place: Path) -> Iterator[None]:
    """Mark a folder in shared memory as in use; the last user of this host removes it."""
    with lock_path(place).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
                lock_path(place).unlink(missing_ok=True)
