"""Watching a run: from inside the process that started it, or from a second terminal at any time, without its noticing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live

from areal_actors.display.recall import beginning, recalled
from areal_actors.display.run_state import RunState
from areal_actors.display.view import RunView, plain_line
from areal_actors.errors import SetupError
from areal_actors.messages import CompletionRefused, EpisodeAbandoned, EventLoopBlocked, Heartbeat, Throughput, TrainerPhase
from areal_actors.run_folder import RunFolder, ServerAddress
from areal_actors.snapshots import SnapshotStore
from bus.base import Bus, Envelope
from bus.errors import EventsTrimmed, ServerUnavailable
from bus.message import Message
from bus.nats import NatsBus
from bus.recorded import export_log
from bus.server import EmbeddedServer
from bus.subjects import check_pattern, matches

REFRESH_SECONDS = 0.25
PHASE_LINES = 10
"""A phase of the trainer's preparation says this often how far it is, where there is no live picture."""
LAST_WORDS_SECONDS = 1.0
"""For the last messages of a run that is gone to arrive."""
EVERYTHING = ("", ">")
LONGEST_TEXT = 160


async def follow(bus: Bus, view: RunView, console: Console, *, live: bool, after: int = 0, snapshots: SnapshotStore | None = None) -> None:
    """Show a run from the event after this one until it is finished: as a picture that is kept up to date, or in plain lines.

    What the view has heard before, it knows. A view that knows nothing begins with one of the run's `snapshots` where the beginning
    of the log was trimmed, and says where that is.
    """
    if not after:
        after = await recalled(bus, snapshots, view.state)
        if missing := await beginning(bus, view.state):
            console.print(missing, markup=False, highlight=False, soft_wrap=True)
    if not live:
        await _followed(bus, view, console, after, snapshots)
        return
    with Live(view.render(), console=console, auto_refresh=False) as screen:
        painting = asyncio.create_task(_paint(view, screen))
        try:
            await _followed(bus, view, None, after, snapshots)
        finally:
            painting.cancel()
            screen.update(view.render(), refresh=True)


async def _paint(view: RunView, screen: Live) -> None:
    while True:
        screen.update(view.render(), refresh=True)
        await asyncio.sleep(REFRESH_SECONDS)


async def _followed(bus: Bus, view: RunView, console: Console | None, after: int, snapshots: SnapshotStore | None) -> None:
    """Feed the view until the run is finished; one that was so slow that trimming overtook it begins again with a snapshot."""
    while True:
        try:
            return await _until_finished(bus, view, console, after)
        except EventsTrimmed:
            view.state = RunState()
            after = await recalled(bus, snapshots, view.state)


async def _until_finished(bus: Bus, view: RunView, console: Console | None, after: int) -> None:
    """Feed the view; with a console, print a line for what happens. A run may have ended in the past and gone on."""
    telemetry = asyncio.create_task(_hear_telemetry(bus, view, console))
    try:
        for present in (False, True):
            async for envelope in bus.log(after=after, follow=present):
                after = envelope.sequence
                message = view.heard(envelope)
                if console and message and not _said_often(message, view):
                    _say(console, plain_line(message), envelope.time)
                if present and view.state.finished:
                    return
            if view.state.finished:
                return
    finally:
        telemetry.cancel()
        with suppress(asyncio.CancelledError):
            await telemetry


async def _hear_telemetry(bus: Bus, view: RunView, console: Console | None) -> None:
    last: tuple[str, int] = ("", -1)
    async with bus.telemetry(Heartbeat, Throughput, TrainerPhase) as inbox:
        async for delivery in inbox:
            phase = view.heard(delivery.envelope)
            if not console or not isinstance(phase, TrainerPhase):
                continue
            reached = (phase.phase, phase.done * PHASE_LINES // max(phase.total, 1))
            if reached != last:
                last = reached
                _say(console, _phase_line(phase), delivery.envelope.time)


def _said_often(message: Message, view: RunView) -> bool:
    """Of many abandoned attempts of a reason, refused completions of a worker, or stretches of a line, only 1, 2, 4, 8 … are shown."""
    if isinstance(message, CompletionRefused):
        count = view.state.refused[message.worker]
    elif isinstance(message, EpisodeAbandoned):
        count = view.state.abandoned[message.reason]
    elif isinstance(message, EventLoopBlocked):
        count = view.state.blocked[message.line].times
    else:
        return False
    return count & (count - 1) != 0


def _phase_line(phase: TrainerPhase) -> str:
    progress = f" {phase.done}/{phase.total}" if phase.total else ""
    return f"{phase.phase}{progress}" + "".join(f", {name} {value:.3g}" for name, value in phase.metrics.items())


def _say(console: Console, line: str | None, at: float) -> None:
    if line:
        console.print(f"{_clock(at)} {line}", markup=False, highlight=False, soft_wrap=True)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


# ---------------------------------------------------------------- from a second terminal


def attach(
    run: str = "", *, folder: Path = Path("runs"), subjects: str = "", bus: Path | None = None, console: Console | None = None
) -> int:
    """Show the live run of this name (empty: the one started last), with its history; returns the exit status.

    With a subject pattern such as `trajectory.>`, print the messages that match instead, one per line. `bus` is a run's
    `monitor.json`, wherever it was copied to: it says which run, and the run's folder is not needed.

    Raises:
        SetupError: no such run is live; the message names what there is.
        BusError: its bus cannot be reached.
    """
    screen = console or Console()
    with suppress(KeyboardInterrupt):
        if bus is not None:
            asyncio.run(_attach(_address_in(bus), None, subjects, screen))
        else:
            live = find_live(run, folder)
            asyncio.run(_attach(live.monitor(), live, subjects, screen))
    return 0


def export(run: str, destination: Path, *, folder: Path = Path("runs")) -> int:
    """Write the log of a run, live or over, to one portable file; returns the exit status.

    Raises:
        SetupError: there is no such run here, or it used a server of its own that keeps the log.
        BusError: its log cannot be read.
    """
    count, missing = asyncio.run(_export(RunFolder(folder / run), destination))
    print(f"{count} events of run '{run}' written to {destination}" + (f"; {missing}" if missing else ""))
    return 0


def find_live(run: str, folder: Path) -> RunFolder:
    """The folder of the live run of this name, or of the one started last if the name is empty.

    Raises:
        SetupError: it is not live.
    """
    announced = sorted(folder.glob("*/bus.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    live = [found for path in announced if (found := RunFolder(path.parent)).live_supervisor()]
    for found in live:
        if run in ("", found.path.name):
            return found
    there = f"live there: {', '.join(found.path.name for found in live)}" if live else f"no run is live in {folder.absolute()}"
    if not run:
        raise SetupError(f"{there}; start one with `areal run RECIPE`")
    over = f"; its metrics are in {folder / run / 'metrics.jsonl'}" if (folder / run).is_dir() else ""
    raise SetupError(f"run '{run}' is not live{over}; {there}")


def _address_in(file: Path) -> ServerAddress:
    try:
        return msgspec.json.decode(file.read_bytes(), type=ServerAddress)
    except (OSError, msgspec.MsgspecError) as error:
        raise SetupError(f"--bus: {file} cannot be read as a run's monitor.json: {error}") from error


async def _attach(server: ServerAddress, folder: RunFolder | None, subjects: str, console: Console) -> None:
    async with _connected(server, folder) as bus:
        if subjects in EVERYTHING:
            store = SnapshotStore(folder.snapshots) if folder else None
            showing = asyncio.create_task(follow(bus, RunView(), console, live=console.is_terminal, snapshots=store))
        else:
            showing = asyncio.create_task(print_messages(bus, check_pattern(subjects), console))
        gone = asyncio.create_task(_wait_gone(folder) if folder is not None else bus.wait_lost())
        lost = asyncio.create_task(bus.wait_lost())
        try:
            await asyncio.wait({showing, gone, lost}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({showing}, timeout=LAST_WORDS_SECONDS)
            if not showing.done():
                raise ServerUnavailable(gone.result() if gone.done() else lost.result())
            await showing
        finally:
            for task in (showing, gone, lost):
                task.cancel()
            await asyncio.gather(showing, gone, lost, return_exceptions=True)


async def _wait_gone(folder: RunFolder) -> str:
    """Wait until nobody supervises the run any more, and say so."""
    while folder.live_supervisor():  # noqa: ASYNC110 - it is another process, which says nothing when it is killed
        await asyncio.sleep(LAST_WORDS_SECONDS)
    return f"run '{folder.path.name}' is over: its supervisor is gone; what it said last is in {folder.logs}"


@asynccontextmanager
async def _connected(server: ServerAddress, folder: RunFolder | None) -> AsyncIterator[NatsBus]:
    blobs = folder.blobs if folder else None
    bus = await NatsBus.connect(server.url, server.run, name="monitor", token=server.token, blobs=blobs, monitors=True)
    try:
        yield bus
    finally:
        await bus.close()


async def _export(folder: RunFolder, destination: Path) -> tuple[int, str]:
    """How many events were written, and what is missing before them."""
    async with opened_log(folder) as bus:
        return await _exported(bus, folder, destination)


@asynccontextmanager
async def opened_log(folder: RunFolder) -> AsyncIterator[NatsBus]:
    """The bus of a run, to read its log: that of a live run, or one on the store that a run has left.

    Raises:
        SetupError: there is no such run here, or it used a server of its own that keeps the log.
        BusError: its log cannot be read.
    """
    if folder.live_supervisor():
        async with _connected(folder.monitor(), folder) as bus:
            yield bus
        return
    if not folder.nats.is_dir() or not any(folder.nats.iterdir()):
        raise SetupError(f"{folder.path} holds no log; name a run that was made here, or export one on a shared server while it is live")
    server = await EmbeddedServer.start(folder.nats)
    try:
        async with _connected(ServerAddress(url=server.url, token=server.token, run=folder.recipe().run, pid=0), folder) as bus:
            yield bus
    finally:
        await server.stop()


async def _exported(bus: Bus, folder: RunFolder, destination: Path) -> tuple[int, str]:
    state = RunState()
    await recalled(bus, SnapshotStore(folder.snapshots), state)
    return await export_log(bus, destination), await beginning(bus, state)


async def print_messages(bus: Bus, subjects: str, console: Console) -> None:
    """Print every event so far and every message from now on whose subject matches, decoded, until cancelled."""
    live: asyncio.Queue[Envelope | None] = asyncio.Queue()

    async def hear() -> None:
        try:
            async for envelope in bus.watch(subjects):
                live.put_nowait(envelope)
        finally:
            live.put_nowait(None)

    hearing = asyncio.create_task(hear())
    printed: set[str] = set()
    try:
        if missing := await beginning(bus, RunState()):
            console.print(missing, markup=False, highlight=False, soft_wrap=True)
        async for envelope in bus.log():
            if matches(subjects, envelope.subject):
                printed.add(envelope.id)
                _print(envelope, console)
        while (heard := await live.get()) is not None:
            if heard.id not in printed:
                _print(heard, console)
        await hearing
    finally:
        hearing.cancel()


def _print(envelope: Envelope, console: Console) -> None:
    place = f" #{envelope.sequence}" if envelope.sequence else ""
    console.print(
        f"{_clock(envelope.time)}{place} {envelope.subject} from {envelope.sender}: {_decoded(envelope)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _decoded(envelope: Envelope) -> str:
    if envelope.claim:
        return f"in {envelope.claim}"
    return json.dumps(_shortened(msgspec.msgpack.decode(envelope.body)), ensure_ascii=False)


def _shortened(value: Any) -> Any:
    """Token columns as their size, long texts by their beginning."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]}… ({len(value)} characters)"
    if isinstance(value, dict):
        return {name: _shortened(entry) for name, entry in value.items()}
    return [_shortened(entry) for entry in value] if isinstance(value, list) else value
