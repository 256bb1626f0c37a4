"""Displays a run: in the process that started it, or in a second terminal at any time, without affecting it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from areal_actors.core.snapshots import SnapshotStore
from areal_actors.display.fullscreen import full_screen, is_screen
from areal_actors.display.message_lines import clock, each_message, json_line, readable_line
from areal_actors.display.prometheus import serving
from areal_actors.display.run_state import RunState
from areal_actors.display.safe_console import SafeConsole
from areal_actors.display.sentences import plain_line
from areal_actors.display.snapshot_start import restore_fold, trimmed_notice
from areal_actors.display.view import RunView
from areal_actors.folder.connections import address_in, connect_to_run, find_live, open_log
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.messages import (
    CompletionRefused,
    EngineStarting,
    EpisodeAbandoned,
    EventLoopBlocked,
    Heartbeat,
    RunFinished,
    Throughput,
    TrainerProgress,
)
from areal_bus.base import Bus, Envelope
from areal_bus.errors import EventsTrimmed, ServerUnavailable
from areal_bus.message import Message
from areal_bus.recorded import export_log
from areal_bus.subjects import check_pattern

PHASE_LINES = 10
"""Number of progress lines for each phase of the trainer's preparation, without a live display."""
DRAIN_SECONDS = 1.0
"""Time for the last messages of a run that has ended to arrive."""
EVERYTHING = ("", ">")
Watch = Callable[[Bus, SnapshotStore | None], Awaitable[None]]
"""Watches a run until it is finished, or cancelled."""


async def follow(
    bus: Bus, view: RunView, console: Console, *, live: bool, after: int = 0, snapshots: SnapshotStore | None = None
) -> None:
    """Show a run until it is finished, from the event after `after`: as a live display, or in plain lines.

    The view has already received earlier events. An empty view of a log with a trimmed beginning starts from one of the
    run's `snapshots`, and prints the position.
    """
    if not after:
        after = await restore_fold(bus, snapshots, view.state)
        if missing := await trimmed_notice(bus, view.state):
            console.print(missing, markup=False, highlight=False, soft_wrap=True)
    if live:
        async with full_screen(view, console):
            await _follow(bus, view, None, after, snapshots)
    else:
        await _follow(bus, view, console, after, snapshots)


async def _follow(
    bus: Bus, view: RunView, console: Console | None, after: int, snapshots: SnapshotStore | None
) -> None:
    """Feed the view until the run is finished; if trimming overtakes a slow view, restart it from a snapshot."""
    while True:
        try:
            return await _until_finished(bus, view, console, after)
        except EventsTrimmed:
            view.state = RunState()
            after = await restore_fold(bus, snapshots, view.state)


async def _until_finished(bus: Bus, view: RunView, console: Console | None, after: int) -> None:
    """Feed the view; with a console, print a line per event. A run may have ended earlier and been resumed."""
    telemetry = asyncio.create_task(_receive_telemetry(bus, view, console))
    try:
        for present in (False, True):
            async for envelope in bus.log(after=after, follow=present):
                after = envelope.sequence
                message = view.receive(envelope)
                if console and message and not _is_throttled(message, view):
                    _print_line(console, plain_line(message), envelope.time)
                if present and view.state.finished:
                    return
            if view.state.finished:
                return
    finally:
        telemetry.cancel()
        with suppress(asyncio.CancelledError):
            await telemetry


async def _receive_telemetry(bus: Bus, view: RunView, console: Console | None) -> None:
    last: tuple[str, int] = ("", -1)
    async with bus.telemetry(EngineStarting, Heartbeat, Throughput, TrainerProgress) as inbox:
        async for delivery in inbox:
            phase = view.receive(delivery.envelope)
            if console and isinstance(phase, EngineStarting):
                _print_line(console, f"{phase.worker}, {phase.seconds:.0f} s: {phase.phase}", delivery.envelope.time)
            if not console or not isinstance(phase, TrainerProgress):
                continue
            reached = (phase.phase, phase.done * PHASE_LINES // max(phase.total, 1))
            if reached != last:
                last = reached
                _print_line(console, _phase_line(phase), delivery.envelope.time)


def _is_throttled(message: Message, view: RunView) -> bool:
    """Returns True if a repeated event is not shown.

    Of abandoned attempts, refused completions and blocks, only 1, 2, 4, 8 … are; a report of several blocks, if it
    reaches one of these numbers.
    """
    if isinstance(message, CompletionRefused):
        count = view.state.refused[message.worker]
    elif isinstance(message, EpisodeAbandoned):
        count = view.state.episodes.of_reason(message.reason)
    elif isinstance(message, EventLoopBlocked):
        count = view.state.blocked[message.line].times
        return count.bit_length() == (count - message.times).bit_length()
    else:
        return False
    return count & (count - 1) != 0


def _phase_line(phase: TrainerProgress) -> str:
    progress = f" {phase.done}/{phase.total}" if phase.total else ""
    return f"{phase.phase}{progress}" + "".join(f", {name} {value:.3g}" for name, value in phase.metrics.items())


def _print_line(console: Console, line: str | None, at: float) -> None:
    if line:
        console.print(f"{clock(at)} {line}", markup=False, highlight=False, soft_wrap=True)


# ---------------------------------------------------------------- from a second terminal


def attach(
    run: str = "",
    *,
    folder: Path = Path("runs"),
    subjects: str = "",
    bus: Path | None = None,
    console: Console | None = None,
    as_json: bool = False,
    prometheus: str = "",
) -> int:
    """Show the live run of this name (empty: the latest), with its history; returns the exit status.

    With a subject pattern such as `trajectory.>`, print the matching messages instead, one per line; with `as_json`,
    print messages as JSON; with `prometheus`, a port or `HOST:PORT`, serve the run's metrics there. `bus` is the path
    of a run's `monitor.json` or a copy of it, which identifies the run without its folder.

    Raises:
        SetupError: no such run is live; the message lists the live ones. Or the address for `prometheus` cannot be
            used.
        BusError: its bus cannot be reached.
    """
    screen = console or SafeConsole()

    async def watch(bus: Bus, snapshots: SnapshotStore | None) -> None:
        if prometheus:
            await serve_metrics(bus, prometheus, snapshots)
        elif as_json:
            await print_json(bus, check_pattern(subjects or ">"))
        elif subjects in EVERYTHING:
            view = RunView()
            view.hint = "Ctrl-C ends this display; the run goes on"
            await follow(bus, view, screen, live=is_screen(screen), snapshots=snapshots)
            if is_screen(screen):
                screen.print(view)
        else:
            await print_messages(bus, check_pattern(subjects), screen)

    with suppress(KeyboardInterrupt):
        if bus is not None:
            asyncio.run(_attach(address_in(bus), None, watch, data=as_json))
        else:
            live = find_live(run, folder)
            asyncio.run(_attach(live.monitor(), live, watch, data=as_json))
    return 0


def export(run: str, destination: Path, *, folder: Path = Path("runs")) -> int:
    """Write the log of a live or finished run to one portable file; returns the exit status.

    Raises:
        SetupError: there is no such run here, or its log is on an external server.
        BusError: its log cannot be read.
    """
    count, missing = asyncio.run(_export(RunFolder(folder / run), destination))
    print(f"{count} events of run '{run}' written to {destination}" + (f"; {missing}" if missing else ""))
    return 0


async def _attach(server: ServerAddress, folder: RunFolder | None, watch: Watch, *, data: bool) -> None:
    """Watch a run until it ends; for `data`, its end is no failure."""
    async with connect_to_run(server, folder, monitors=True) as bus:
        watching = asyncio.ensure_future(watch(bus, SnapshotStore(folder.snapshots) if folder else None))
        finished = asyncio.create_task(_wait_gone(folder) if folder else _wait_finished(bus))
        ends = [finished, asyncio.create_task(bus.wait_lost())]
        try:
            await asyncio.wait({watching, *ends}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({watching}, timeout=DRAIN_SECONDS)
            ended = next((end.result() for end in ends if end.done()), "")
            if not watching.done() and (data or (folder is None and finished.done())):
                sys.stderr.write(f"{ended}\n")
            elif not watching.done():
                raise ServerUnavailable(ended)
            else:
                await watching
        finally:
            for task in (watching, *ends):
                task.cancel()
            await asyncio.gather(watching, *ends, return_exceptions=True)


async def _wait_gone(folder: RunFolder) -> str:
    """Wait until the run has no supervisor any more; returns a message about it."""
    while folder.live_supervisor():  # noqa: ASYNC110 - it is another process, which publishes nothing when it is killed
        await asyncio.sleep(DRAIN_SECONDS)
    return f"run '{folder.path.name}' has ended: its supervisor is gone; its logs are in {folder.logs}"


async def _wait_finished(bus: Bus) -> str:
    """Wait until a run of another host is finished, whose server then ends; returns a message about it."""
    async for envelope in bus.watch(RunFinished.subject):
        return f"run '{envelope.run}' has ended"
    raise AssertionError("a watch never ends by itself")


async def _export(folder: RunFolder, destination: Path) -> tuple[int, str]:
    """Returns the number of events written, and a notice about events missing before them."""
    async with open_log(folder) as bus:
        state = RunState()
        await restore_fold(bus, SnapshotStore(folder.snapshots), state)
        return await export_log(bus, destination), await trimmed_notice(bus, state)


async def print_messages(bus: Bus, subjects: str, console: Console) -> None:
    """Print matching events of the log and matching new messages, decoded, until cancelled."""
    if missing := await trimmed_notice(bus, RunState()):
        console.print(missing, markup=False, highlight=False, soft_wrap=True)
    await each_message(
        bus,
        subjects,
        lambda envelope: console.print(readable_line(envelope), markup=False, highlight=False, soft_wrap=True),
    )


async def serve_metrics(bus: Bus, address: str, snapshots: SnapshotStore | None) -> None:
    """Serve the run's metrics for Prometheus until the run is finished."""
    view = RunView()
    after = await restore_fold(bus, snapshots, view.state)
    async with serving(lambda: view.state, address) as url:
        sys.stderr.write(f"metrics at {url}, until the run ends\n")
        await _follow(bus, view, None, after, snapshots)


async def print_json(bus: Bus, subjects: str) -> None:
    """Print matching messages as `print_messages` does, as JSON.

    One object a line on standard output, notices on standard error.
    """
    if missing := await trimmed_notice(bus, RunState()):
        sys.stderr.write(f"{missing}\n")

    def write(envelope: Envelope) -> None:
        sys.stdout.write(f"{json_line(envelope)}\n")
        sys.stdout.flush()

    await each_message(bus, subjects, write)
