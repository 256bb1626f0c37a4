"""A blocked event loop: what a busy machine takes from its thread is no block, and the remedy fits the line."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout import loop_watch
from areal_actors.rollout.agent_loop import AgentLoop, AgentRun
from areal_actors.rollout.blocked import CLIENT_REMEDY, REMEDY, format_blocked
from areal_actors.rollout.loop_watch import LoopWatch, processor_wait


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
