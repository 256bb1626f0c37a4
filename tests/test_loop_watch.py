"""A blocked event loop: what a busy machine takes from its thread is no block, and the remedy fits the line."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import sysconfig
import threading
import time
from itertools import pairwise
from traceback import walk_stack

import pytest

from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout import loop_watch, report_pace, short_blocks
from areal_actors.rollout.agent_loop import AgentLoop, AgentRun
from areal_actors.rollout.blocked import CLIENT_REMEDY, REMEDY, format_blocked
from areal_actors.rollout.loop_watch import LoopWatch, processor_wait
from areal_actors.rollout.report_pace import ReportPace
from areal_actors.rollout.short_blocks import ShortBlocks
from areal_actors.rollout.stack import CodeLocation, user_location


class Loop:
    """An event loop in a thread of its own, watched."""

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.watch = LoopWatch(self.loop, self.thread, lambda: "0.0")
        return self

    def __exit__(self, *_):
        self.watch.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.watch._thread.join()
        self.loop.close()

    def call(self, function, *args):
        """Call a function in the loop and wait for its end, and for the watch to see it."""
        over = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(*args), over.set()))
        over.wait()
        time.sleep(4 * loop_watch.POLL_SECONDS)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.3)
    monkeypatch.setattr(report_pace, "FIRST_SECONDS", 0.0)


def test_a_loop_that_sleeps_is_blocked():
    with Loop() as loop:
        loop.call(time.sleep, 1.0)
        assert [report.times for report in loop.watch.reports()] == [1]


def blocking(seconds):
    """An agent that blocks its loop."""

    async def run():
        time.sleep(seconds)  # noqa: ASYNC251 - the block

    return run


async def wait_for_reports(loop, seconds=5.0):
    """The reports of an agents' loop, as soon as there are any."""
    until = time.monotonic() + seconds
    while not (reports := loop.watch.reports()) and time.monotonic() < until:  # noqa: ASYNC110 - of another thread
        await asyncio.sleep(0.05)
    return reports


async def test_a_loop_that_waits_is_not_woken_and_its_next_block_is_measured_from_its_beginning():
    agents = AgentLoop()
    try:
        woken = 0
        select = agents.loop._waiting.select

        def counted(timeout=None):
            nonlocal woken
            woken += 1
            return select(timeout)

        agents.loop._waiting.select = counted
        await asyncio.sleep(1.5)
        assert woken <= 2
        for _ in range(3):  # wherever between two looks the block begins
            agents.submit(AgentRun(blocking(0.8), contextvars.copy_context()))
            (report,) = await wait_for_reports(agents)
            assert 0.6 < report.seconds < 2.5
            await asyncio.sleep(0.17)
    finally:
        await agents.stop()


def test_a_loop_whose_thread_waits_for_a_processor_is_not_blocked(monkeypatch):
    """The wait grows as fast as the clock, as on a machine whose processors other programs have."""
    monkeypatch.setattr(loop_watch, "processor_wait", lambda thread: time.monotonic())
    with Loop() as loop:
        loop.call(time.sleep, 1.0)
        assert loop.watch.reports() == []
        assert loop.watch.since(0.0) is None


def test_the_wait_of_a_thread_is_read_and_grows():
    before = processor_wait(threading.get_native_id())
    assert processor_wait(threading.get_native_id()) >= before >= 0
    assert processor_wait(-1) == 0


@pytest.mark.parametrize(
    ("innermost", "remedy"),
    [
        ("ssl.py:713 in load_default_certs", CLIENT_REMEDY),
        ("_client.py:300 in __init__", CLIENT_REMEDY),
        ("client.py:30 in recv", REMEDY),
        ("agent.py:7 in run", REMEDY),
        ("", REMEDY),
    ],
)
def test_the_remedy_fits_the_line(innermost, remedy):
    assert format_blocked(EventLoopBlocked(seconds=1.5, line="agent.py:7", innermost=innermost)).endswith(remedy)


def compute(seconds):
    """Compute, in a callback of its own."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_short_blocks_that_together_take_the_loop_are_reported_with_their_line(monkeypatch):
    monkeypatch.setattr(short_blocks, "WINDOW_SECONDS", 1.0)
    monkeypatch.setattr(short_blocks, "LEAST_SHARE", 0.1)  # other programs may have the processors
    with Loop() as loop:
        until = time.monotonic() + 20.0
        reports = []
        while not reports and time.monotonic() < until:
            for _ in range(8):
                loop.loop.call_soon_threadsafe(compute, 0.03)
            await asyncio.sleep(0.2)
            reports = loop.watch.reports()
    assert reports[0].line.startswith("test_loop_watch.py:")
    assert 0.1 <= reports[0].seconds <= 20.0


def look(name, *, is_awaited=False):
    """A look at a thread that executes a line of an agent."""
    return CodeLocation(name, f"{name} in run", is_user_code=True, is_event_loop=False, is_awaited=is_awaited)


def test_the_time_of_what_an_agent_awaits_and_of_other_programs_is_not_its_line_s():
    def report(*looks, waited=0.0):
        window = ShortBlocks(0.0, 0.0)
        for at in looks:
            window.add_sample(at, "0.0")
        assert window.end_window(4.9, waited, 0.1) is None
        return window.end_window(5.0, waited, 0.1)

    assert report(*[look("agent.py:7")] * 35).seconds == pytest.approx(3.5)
    assert report(*[look("agent.py:7", is_awaited=True)] * 40) is None
    assert report(*[look("agent.py:7")] * 25) is None
    assert report(*[look(f"agent.py:{line}") for line in range(40)]) is None
    assert report(*[look("agent.py:7")] * 35, waited=2.0) is None


async def test_a_library_s_coroutine_is_awaited_and_a_synchronous_call_is_the_line_s_own():
    library = {}
    source = "async def work(look):\n    look()\n\ndef compute(look):\n    look()\n"
    exec(compile(source, f"{sysconfig.get_path('stdlib')}/library.py", "exec"), library)
    places = []

    def see():
        frames = list(walk_stack(sys._getframe()))
        places.append(
            user_location([frame for frame in frames if frame[0].f_code.co_name not in ("see", "walk_stack")])
        )

    await library["work"](see)
    library["compute"](see)
    assert [place.is_awaited for place in places] == [True, False]
    assert all(place.is_user_code and place.innermost.startswith("library.py:") for place in places)


def block(line, seconds=4.0):
    return EventLoopBlocked(seconds=seconds, line=line, episode="0.0")


def test_a_line_that_blocks_for_ever_is_reported_at_once_then_ever_more_rarely_and_no_second_is_lost(monkeypatch):
    monkeypatch.setattr(report_pace, "FIRST_SECONDS", 10.0)
    pace, taken = ReportPace(), []
    for window in range(120):
        now = 5.0 * window
        pace.add(block("agent.py:7"), now)
        if window == 30:
            pace.add(block("agent.py:9"), now)
        taken += [(now, report) for report in pace.take_due(now)]
    often = [(at, report) for at, report in taken if report.line == "agent.py:7"]
    times = [at for at, _ in often]
    assert times[:5] == [0.0, 10.0, 30.0, 70.0, 130.0]
    assert {later - earlier for earlier, later in pairwise(times[4:])} == {60.0}
    assert [at for at, report in taken if report.line == "agent.py:9"] == [150.0], "another line waits for none"
    rest = [report for report in pace.take_due(10_000.0) if report.line == "agent.py:7"]
    reports = [report for _, report in often] + rest
    assert sum(report.seconds for report in reports) == 120 * 4.0
    assert sum(report.times for report in reports) == 120


def test_a_line_that_blocks_again_after_a_while_is_reported_at_once_again(monkeypatch):
    monkeypatch.setattr(report_pace, "FIRST_SECONDS", 10.0)
    pace = ReportPace()
    pace.add(block("agent.py:7"), 0.0)
    assert len(pace.take_due(0.0)) == 1
    pace.add(block("agent.py:7"), 5.0)
    assert pace.take_due(9.0) == []
    assert len(pace.take_due(10.0)) == 1, "what waits is reported without another block"
    assert pace.take_due(100.0) == []
    pace.add(block("agent.py:7"), 101.0)
    assert len(pace.take_due(101.0)) == 1


def test_a_watch_passes_on_one_report_and_then_the_sum_of_those_that_follow(monkeypatch):
    monkeypatch.setattr(report_pace, "FIRST_SECONDS", 3.0)
    loop = Loop()
    with loop:
        loop.call(time.sleep, 0.6)
        (first,) = loop.watch.reports()
        loop.call(time.sleep, 0.6)
        loop.call(time.sleep, 0.6)
        waiting, until = loop.watch.reports(), time.monotonic() + 60.0
        while not waiting and time.monotonic() < until:
            time.sleep(0.05)
            waiting = loop.watch.reports()
    (second,) = waiting
    assert (first.times, second.times) == (1, 2)
    assert second.seconds > 0.9
