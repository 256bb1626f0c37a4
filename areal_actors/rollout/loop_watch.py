"""Measures how long callbacks block an event loop, and finds the blocking line.

A thread pings the loop periodically. While there is no answer it samples the stack of the loop's thread; with each
ping it samples it once, for blocks that are short and many. A loop that
reports that it waits for events is not pinged: that would wake it for nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from pathlib import Path

import structlog

from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout.blocked import format_blocked, merge_reports
from areal_actors.rollout.blocked_interval import BlockedInterval
from areal_actors.rollout.report_pace import ReportPace
from areal_actors.rollout.short_blocks import ShortBlocks
from areal_actors.rollout.stack import thread_location

POLL_SECONDS = 0.1
REST_SECONDS = 0.5
"""Time between two looks at a loop that waits."""
BLOCKED_SECONDS = 1.0
"""Shortest block that is reported."""
STOPPED_SHARE = 0.02
"""CPU share below which the process counts as suspended, as with its machine, and not as blocked."""
KEPT = 256
"""Maximum number of intervals and of reports kept; the oldest are dropped first."""

SCHEDULE = "/proc/self/task/{}/schedstat"
"""Linux: nanoseconds that a thread ran, and that it waited for a processor."""

logger = structlog.get_logger(__name__)


def processor_wait(thread: int | None) -> float:
    """Return the seconds for which a thread, by its native id, was ready and waited for a processor.

    0 where the system has no count.
    """
    try:
        return int(Path(SCHEDULE.format(thread)).read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class LoopWatch:
    """Watches one loop from its own thread until it is stopped."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        episode: Callable[[], str],
        busy_since: Callable[[], float | None] = time.monotonic,
    ) -> None:
        """Begin to watch; the functions are thread-safe.

        Args:
            loop: the loop.
            thread: its thread.
            episode: returns the episode that executes in the loop.
            busy_since: returns the monotonic time since which callbacks run, None while the loop waits for events.
        """
        self._loop, self._watched, self._episode, self._busy_since = loop, thread, episode, busy_since
        self._over = threading.Event()
        self._answered = threading.Event()
        self._present: BlockedInterval | None = None
        self._waited = 0.0
        """The thread's `processor_wait` when the loop answered last."""
        self._past: deque[BlockedInterval] = deque(maxlen=KEPT)
        self._unreported: deque[EventLoopBlocked] = deque(maxlen=KEPT)
        self._short, self._pace = self._begin_short(), ReportPace()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="loop watch")
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._over.set()

    def reports(self) -> list[EventLoopBlocked]:
        """Take the reports since the last call, one per blocking line."""
        taken: dict[str, EventLoopBlocked] = {}
        while self._unreported:
            report = self._unreported.popleft()
            before = taken.get(report.line)
            taken[report.line] = report if before is None else merge_reports(before, report)
        return list(taken.values())

    def present(self) -> EventLoopBlocked | None:
        """A report of the current block, if it is long enough."""
        interval = self._present
        return interval.report() if interval is not None and _is_long(interval) else None

    def since(self, began: float) -> EventLoopBlocked | None:
        """All blocks since a monotonic time, merged into one report with the line of the longest."""
        present = self._present
        intervals = [*self._past, present] if present is not None else list(self._past)
        reports = [
            interval.report()
            for interval in intervals
            if interval.has_line() and interval.began + interval.seconds > began
        ]
        if sum(report.seconds for report in reports) < BLOCKED_SECONDS:
            return None
        return reduce(merge_reports, reports)

    # ------------------------------------------------------------ in the thread

    def _watch(self) -> None:
        while not self._over.is_set():
            seconds = REST_SECONDS if self._busy_since() is None else POLL_SECONDS
            wait = _TimedWait(seconds)
            self._waited = processor_wait(self._watched.native_id)
            self._over.wait(seconds)
            late, busy_since = wait.late(), self._busy_since()
            if busy_since is not None:
                self._short.add_sample(thread_location(self._watched.ident), self._episode())
            if report := self._short.end_window(time.monotonic(), self._waited, POLL_SECONDS):
                self._report(report)
            self._pass_on_due()
            if busy_since is None and late < POLL_SECONDS:
                continue
            began = time.monotonic() if busy_since is None else max(busy_since, wait.began)
            with suppress(RuntimeError):  # the loop is closed
                self._ping(wait.began if late > BLOCKED_SECONDS and not wait.was_suspended(late) else began)

    def _ping(self, began: float) -> None:
        """Ping the loop, and sample its thread until it answers. It may have held the GIL since before the ping."""
        if time.monotonic() - began > BLOCKED_SECONDS:
            self._sample(BlockedInterval(began, self._waited), began)
        self._answered.clear()
        self._loop.call_soon_threadsafe(self._answered.set)
        while not self._over.is_set():
            wait = _TimedWait(POLL_SECONDS)
            answered = self._answered.wait(POLL_SECONDS)
            late = wait.late()
            if wait.was_suspended(late):
                began += late
            if answered:
                self._end(began)
                return
            self._sample(self._present or BlockedInterval(began, self._waited), began)

    def _sample(self, interval: BlockedInterval, began: float) -> None:
        at, episode = thread_location(self._watched.ident), self._episode()
        interval.add_sample(at, episode)
        self._short.add_sample(at, episode)
        interval.seconds = self._blocked_seconds(interval, began)
        self._present = interval

    def _blocked_seconds(self, interval: BlockedInterval, began: float) -> float:
        """Seconds since a time, without those in which the thread was ready and other programs had the processors."""
        waited = processor_wait(self._watched.native_id) - interval.waited
        return max(time.monotonic() - began - max(waited, 0.0), 0.0)

    def _end(self, began: float) -> None:
        if (interval := self._present) is None:
            return
        interval.seconds = self._blocked_seconds(interval, began)
        self._present = None
        self._past.append(interval)
        if _is_long(interval):
            self._report(interval.report())
            self._short = self._begin_short()

    def _begin_short(self) -> ShortBlocks:
        return ShortBlocks(time.monotonic(), processor_wait(self._watched.native_id))

    def _report(self, report: EventLoopBlocked) -> None:
        self._pace.add(report, time.monotonic())
        self._pass_on_due()

    def _pass_on_due(self) -> None:
        for report in self._pace.take_due(time.monotonic()):
            self._unreported.append(report)
            logger.warning(format_blocked(report), episode=report.episode, line=report.line, innermost=report.innermost)


def _is_long(interval: BlockedInterval) -> bool:
    """True if a line has blocked the loop for long enough to be reported."""
    return interval.has_line() and interval.seconds >= BLOCKED_SECONDS


class _TimedWait:
    """A wait for a time, and its delay: the GIL was held, or the process was suspended."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.began = time.monotonic()
        self._used = time.process_time()

    def late(self) -> float:
        """Seconds beyond that time."""
        return max(time.monotonic() - self.began - self._seconds, 0.0)

    def was_suspended(self, late: float) -> bool:
        """True if the process was suspended: a thread that holds the GIL uses CPU."""
        return late > POLL_SECONDS and time.process_time() - self._used < STOPPED_SHARE * late
