"""Liveness of a run's processes.

It follows heartbeats by process id, the progress of starting processes, and leases of remote workers. A pure fold over
heartbeats and operating system readings; it starts and kills nothing. Its clock counts only while the watcher itself
could receive heartbeats: a watcher that was stopped (Ctrl-Z, SIGSTOP, a suspended machine), has a backlog of messages,
or has lost its connection to the bus receives none. With wall-clock or plain monotonic time, every process would be
late at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import psutil

from areal_actors.core.watchdog_settings import QUIET_SECONDS, WatchdogSettings

CPU_SECONDS = 0.1
READ_BYTES = 65536
"""CPU time and bytes read since the last progress that count as progress of a start."""
MAX_START_FACTOR = 10.0
"""A start may take at most this multiple of `start_seconds`, even with progress."""
START_OVERDUE = "did not start"
"""Part of the reason of every process that is killed while it starts."""
IS_STOPPED = "is stopped (SIGSTOP, or a debugger)"
FRESH_SECONDS = QUIET_SECONDS + 1.5
"""If no process has sent a heartbeat for this many seconds, all count as silent together."""
ALL_SILENT_FACTOR = 3.0
"""Processes that are silent together get this multiple of `heartbeat_seconds`."""

MAX_TICK_SECONDS = 2.0
"""Maximum seconds between two ticks; more is a pause of the watcher's own process."""
LONG_GAP_SECONDS = 3.0
"""After a longer gap without answers, other processes may have lost their connections, too."""


class WatchClock:
    """Counts seconds from a monotonic clock, without the watcher's own pauses.

    `running` counts while the watcher's process runs. `watching` counts only while, in addition, its probes return over
    the bus; heartbeats that were sent before have then been received, too.
    """

    def __init__(self, monotonic: float) -> None:
        self.running = 0.0
        self.watching = 0.0
        self.paused = 0.0
        """Pause of the watcher's own process at its last tick, in seconds."""
        self._last = monotonic
        self._answered_at = 0.0
        self._answered = True

    def note_answer(self) -> None:
        """Note that a probe has returned over the bus."""
        self._answered = True

    def tick(self, monotonic: float) -> bool:
        """Advance to this reading of the monotonic clock.

        Returns True when a long gap without answers has just ended.
        """
        elapsed = max(monotonic - self._last, 0.0)
        self._last = monotonic
        self.paused = elapsed if elapsed > MAX_TICK_SECONDS else 0.0
        self.running += min(elapsed, MAX_TICK_SECONDS)
        if not self._answered:
            return self.paused > LONG_GAP_SECONDS
        self._answered = False
        self.watching += min(elapsed, MAX_TICK_SECONDS)
        gap, self._answered_at = self.running - self._answered_at, self.running
        return max(gap, self.paused) > LONG_GAP_SECONDS

    def silent_seconds(self) -> float:
        """Returns the seconds since the last returned probe, without the watcher's own pauses."""
        return self.running - self._answered_at


class Activity(NamedTuple):
    """Operating system readings of a process."""

    cpu_seconds: float = 0.0
    read_bytes: int = 0
    state: str = ""
    """As psutil names it: `running`, `sleeping`, `disk-sleep`, `stopped`, …; empty if the process is gone."""


class Overdue(msgspec.Struct, frozen=True):
    """A process that is to be killed, and the reason."""

    process: str
    pid: int
    reason: str


@dataclass
class _Start:
    """A process that does not serve all its actors yet."""

    since: float
    progressed: float
    activity: Activity


@dataclass
class _Lease:
    """A remote worker, which is alive while its lease is renewed."""

    admitted: float
    renewed: float
    beats: bool = False
    """True once its actor has sent a heartbeat: from then on only heartbeats renew the lease."""


class Leases:
    """Leases of the remote workers, by name.

    They are folded from their heartbeats, and from renewals by their hosts while they start.
    """

    def __init__(self, settings: WatchdogSettings) -> None:
        self.settings = settings
        self.held: dict[str, _Lease] = {}

    def admit(self, worker: str, now: float) -> None:
        """Begin a lease."""
        self.held[worker] = _Lease(now, now)

    def renew(self, worker: str, now: float) -> None:
        """Note that the process of a worker lives, which counts until its actor serves."""
        if (lease := self.held.get(worker)) is not None and not lease.beats:
            lease.renewed = now

    def beat(self, worker: str, now: float) -> None:
        """Receive a heartbeat of a worker's actor."""
        if (lease := self.held.get(worker)) is not None:
            lease.renewed, lease.beats = now, True

    def excuse(self, now: float) -> None:
        """Renew all leases: renewals may have been lost together with the watcher's own connection."""
        for lease in self.held.values():
            lease.renewed = now

    def starting(self, now: float) -> list[str]:
        """Describes each worker that was admitted and does not serve yet."""
        return [
            f"{worker} joined {now - lease.admitted:.0f} s ago and has not started yet"
            for worker, lease in self.held.items()
            if not lease.beats
        ]

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """Returns the workers whose lease has expired, with the reason."""
        sentences = []
        for worker, lease in self.held.items():
            silent, limit = now - lease.renewed, self.settings.heartbeat_seconds
            start_limit = self.settings.start_seconds * MAX_START_FACTOR
            if silent > limit:
                sign = "heartbeat" if lease.beats else "sign of life"
                sentences.append((worker, f"no {sign} for {silent:.0f} s (watchdog.heartbeat_seconds = {limit:g})"))
            elif not lease.beats and now - lease.admitted > start_limit:
                sentences.append((worker, f"{worker} {START_OVERDUE} within {start_limit:g} s"))
        return sentences


@dataclass
class Liveness:
    """A fold over heartbeats by process id: an old heartbeat does not count for a replacement."""

    settings: WatchdogSettings
    expected: Callable[[str], Collection[str]]
    """The actors of a process, by its name."""
    activity: Callable[[int], Activity]
    beats: dict[int, dict[str, float]] = field(default_factory=dict)
    """Time of the last heartbeat received, by process id and actor."""
    starts: dict[int, _Start] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)
    """Names of processes that have served all their actors at least once."""
    silence: str = ""
    """Reason why silent processes are not killed; empty otherwise."""
    first_start_progressed: float = 0.0
    """Last time at which a process that has never served made progress while starting."""

    def beat(self, pid: int, actor: str, now: float) -> None:
        """Receive a heartbeat."""
        self.beats.setdefault(pid, {})[actor] = now

    def excuse(self, now: float) -> None:
        """Restart all deadlines: other connections may have been lost together with the watcher's own."""
        for actors in self.beats.values():
            for actor in actors:
                actors[actor] = now
        for start in self.starts.values():
            start.progressed = now

    def overdue(self, processes: Mapping[str, int], now: float) -> list[Overdue]:
        """Returns the live processes (name to id) that must be killed now."""
        alive = set(processes.values())
        self.beats = {pid: actors for pid, actors in self.beats.items() if pid in alive}
        self.starts = {pid: start for pid, start in self.starts.items() if pid in alive}
        stuck = [sentence for name, pid in processes.items() if (sentence := self._stuck(name, pid, now))]
        return [*stuck, *self._silent(processes, now)]

    def missing(self, name: str, pid: int) -> list[str]:
        """The actors of a process that have not sent a heartbeat yet."""
        return sorted(set(self.expected(name)) - self.beats.get(pid, {}).keys())

    def stopped(self, processes: Mapping[str, int], now: float) -> list[str]:
        """Describes each live process (name to id) that is stopped and sends no heartbeats."""
        late = [
            pid
            for pid in processes.values()
            if now - min(self.beats.get(pid, {}).values(), default=now) > FRESH_SECONDS
        ]
        names = {pid: name for name, pid in processes.items()}
        return [
            f"process {pid} of {names[pid]} {IS_STOPPED}"
            for pid in late
            if self.activity(pid).state == psutil.STATUS_STOPPED
        ]

    def _stuck(self, name: str, pid: int, now: float) -> Overdue | None:
        """Returns the process if it starts without progress."""
        missing = self.missing(name, pid)
        if not missing:
            self.served.add(name)
            self.starts.pop(pid, None)
            return None
        activity = self.activity(pid)
        start = self.starts.setdefault(pid, _Start(now, now, activity))
        if not self.beats.get(pid) and _progress(start.activity, activity):
            start.progressed, start.activity = now, activity
            if name not in self.served:
                self.first_start_progressed = now
        limit = self.settings.start_seconds
        actors = ", ".join(missing)
        if now - start.progressed > limit:
            what = (
                f"its process {pid} is {activity.state or 'gone'}, used no CPU time and read nothing for"
                f" {now - start.progressed:.0f} s"
            )
            if self.beats.get(pid):
                what = f"other actors of its process {pid} serve, it has been starting for {now - start.since:.0f} s"
            return Overdue(name, pid, f"{actors} {START_OVERDUE}: {what} (watchdog.start_seconds = {limit:g})")
        if now - start.since > limit * MAX_START_FACTOR:
            what = (
                f"its process {pid} is {activity.state}, has used {activity.cpu_seconds:.0f} s of CPU time and is not"
                " ready"
            )
            return Overdue(name, pid, f"{actors} {START_OVERDUE} within {limit * MAX_START_FACTOR:g} s: {what}")
        return None

    def _silent(self, processes: Mapping[str, int], now: float) -> Iterable[Overdue]:
        """Yields processes that have stopped sending heartbeats; none while all of them have."""
        names = {pid: name for name, pid in processes.items()}
        ages = {pid: now - min(actors.values()) for pid, actors in self.beats.items()}
        late = {pid: age for pid, age in ages.items() if age > self.settings.heartbeat_seconds}
        self.silence = ""
        if (
            late
            and len(ages) > 1
            and FRESH_SECONDS < (youngest := min(ages.values())) <= self.settings.heartbeat_seconds * ALL_SILENT_FACTOR
        ):
            self.silence = (
                f"no process has sent a heartbeat for {youngest:.0f} s although nats-server answers the supervisor: "
                f"all {len(ages)} are paused together, or the machine is overloaded; none is killed yet"
            )
            return
        for pid, age in late.items():
            actors = ", ".join(
                sorted(actor for actor, at in self.beats[pid].items() if now - at > self.settings.heartbeat_seconds)
            )
            state = self.activity(pid).state
            why = IS_STOPPED if state == psutil.STATUS_STOPPED else f"is {state or 'gone'}"
            yield Overdue(names[pid], pid, f"no heartbeat of {actors} for {age:.0f} s; its process {pid} {why}")


def _progress(before: Activity, after: Activity) -> bool:
    used = after.cpu_seconds - before.cpu_seconds >= CPU_SECONDS or after.read_bytes - before.read_bytes >= READ_BYTES
    return used or after.state == psutil.STATUS_DISK_SLEEP


def activity_of(pid: int) -> Activity:
    """Read a process's state from the operating system."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu, state = process.cpu_times(), process.status()
            read = process.io_counters().read_chars if psutil.LINUX else 0
    except psutil.Error:
        return Activity()
    return Activity(cpu.user + cpu.system, read, state)
