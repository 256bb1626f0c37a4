"""Agents on an event loop of their own: what blocks it is named and stops no lease, and what holds it for ever ends by
name."""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import threading
import time
from contextvars import copy_context

import pytest

from areal_actors.core.errors import AgentError, AgentsBlocked
from areal_actors.core.values import Task
from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout import agent_loop, loop_watch, own_loop_runner
from areal_actors.rollout.agent_loop import CALLBACK_SECONDS, AgentEventLoop, AgentLoop, AgentRun
from areal_actors.rollout.agent_runner import AgentResult, Cause
from areal_actors.rollout.blocked import format_blocked
from areal_actors.rollout.blocked_interval import BlockedInterval
from areal_actors.rollout.episode_context import EpisodeContext, workflow_context
from areal_actors.rollout.inline_runner import InlineRunner
from areal_actors.rollout.own_loop_runner import OwnLoopRunner
from areal_actors.rollout.stack import thread_location

AGENT = """
import asyncio, re, subprocess, sys, threading, time
from areal_actors.library.workflow import workflow_context

class Agent:
    async def run(self, task, *, base_url, api_key):
        return await getattr(self, task["do"])(task)

    async def answer(self, task):
        await asyncio.sleep(0)
        return f"{workflow_context.get().episode} {threading.current_thread().name}"

    async def nap(self, task):
        await asyncio.sleep(0.01)
        pause(task["pause"])
        return 1.0

    async def search(self, task):
        re.search("(a+)+$", "a" * task["letters"] + "b")
        return 1.0

    async def wait(self, task):
        await asyncio.sleep(100)

    async def ignore(self, task):
        while True:
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                pass

    async def clean(self, task):
        try:
            await asyncio.sleep(0.5)
        finally:
            await asyncio.sleep(0.01)
            task["cleaned"].append(True)

    async def fail(self, task):
        raise ValueError("no way")

    async def start_a_process(self, task):
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(6 * 7)", stdout=subprocess.PIPE)
        out, _ = await child.communicate()
        return out.decode().strip()

    async def connect(self, task):
        async with asyncio.timeout(3):
            await asyncio.sleep(0.5)
        return 1.0

    async def leave_a_client(self, task):
        Client(task["closed"])
        return 1.0

    async def keep_a_connection(self, task):
        kept.append(await asyncio.open_connection("127.0.0.1", task["port"]))
        return 1.0

kept = []

class Client:
    # of the OpenAI SDK in short: it closes its connections on the loop that runs when it is collected

    def __init__(self, closed):
        self.closed, self.itself = closed, self

    def __del__(self):
        asyncio.get_running_loop().create_task(self.close())

    async def close(self):
        await asyncio.sleep(0.01)
        self.closed.append(threading.current_thread().name)

def pause(seconds):
    time.sleep(seconds)

class Threaded:
    def run(self, task, *, base_url, api_key):
        pause(task["pause"])
        return 1.0
"""
NAP = next(number for number, line in enumerate(AGENT.splitlines(), start=1) if "time.sleep(seconds)" in line)
SEARCH = next(number for number, line in enumerate(AGENT.splitlines(), start=1) if "re.search" in line)
WAIT = next(number for number, line in enumerate(AGENT.splitlines(), start=1) if "asyncio.sleep(100)" in line)


@pytest.fixture
def hurried(monkeypatch):
    """Before `runner`: its end waits only briefly for agents that do not end."""
    monkeypatch.setattr(agent_loop, "STOP_SECONDS", 0.2)


@pytest.fixture
async def runner(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    made = OwnLoopRunner(InlineRunner.from_name("agent.py:Agent", tmp_path))
    await made.start()
    yield made
    await made.close()


async def play(runner, do, episode="3.1", seconds=60.0, **data):
    with workflow_context.running(EpisodeContext(episode=episode)):
        async with asyncio.timeout(seconds):
            return await runner.run(Task(id="t", data={"do": do, **data}), base_url="u", api_key="k")


async def timed_out(runner, do, seconds=0.2, **data):
    """The notes on the end of an agent that does not return in time."""
    with pytest.raises(TimeoutError) as caught:
        await play(runner, do, seconds=seconds, **data)
    return getattr(caught.value.__context__, "__notes__", [])


async def reports(runner):
    found = []
    async with asyncio.timeout(300):
        while not found:
            await asyncio.sleep(0.02)
            found = runner.take_blocks()
    return found


async def test_an_agent_runs_in_a_thread_of_its_own_and_knows_its_episode(runner):
    assert await asyncio.gather(*(play(runner, "answer", f"3.{n}") for n in range(9))) == [
        AgentResult(output=f"3.{n} agents") for n in range(9)
    ]


async def test_an_agent_that_raises_does_so_here(runner):
    with pytest.raises(AgentError, match=r"raised ValueError: no way at agent\.py"):
        await play(runner, "fail")


async def test_an_agent_can_start_processes(runner):
    assert (await play(runner, "start_a_process")).output == "42"


async def test_an_agent_that_blocks_stops_no_other_loop_and_is_reported_with_its_line_and_episode(runner):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    assert await play(runner, "nap", "7.2", seconds=60, pause=2.5) == AgentResult(reward=1.0)
    ticking.cancel()
    assert ticks > 5
    (report,) = await reports(runner)
    assert (report.line, report.episode, report.episodes) == (f"agent.py:{NAP}", "7.2", 1)
    assert report.seconds > 1.5
    assert "pause" in report.innermost
    assert runner.take_blocks() == []


async def test_a_line_that_holds_the_interpreter_is_found_too(runner):
    letters = 22
    took = 0.0
    found = []
    while (
        not found
    ):  # which thread runs next is up to the kernel: the sampling one does not always come before the agent goes on
        letters += took < 1.5
        began = time.process_time()
        await play(runner, "search", letters=letters)
        took = time.process_time() - began
        await asyncio.sleep(0.5)
        found = runner.take_blocks()
    (report,) = found
    assert report.line == f"agent.py:{SEARCH}"
    assert "in search" in report.innermost


def test_a_loop_that_waits_for_events_or_for_a_processor_is_not_blocked():
    reading, writing = socket.socketpair()
    with reading, writing, selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        thread = threading.Thread(target=selector.select, daemon=True)
        thread.start()
        while not (at := thread_location(thread.ident)) or not at.innermost.endswith(" in select"):
            time.sleep(0.01)
        writing.send(b"1")
        thread.join()
    interval = BlockedInterval(0.0)
    interval.add_sample(at, "3.1")
    assert not interval.has_line()


async def test_an_agent_that_waits_too_long_is_cancelled_and_its_line_is_known(runner):
    notes = await timed_out(runner, "wait")
    assert [note for note in notes if note.startswith(f"; it waited at agent.py:{WAIT}")] == notes


async def test_a_cancelled_agent_may_clean_up(runner):
    cleaned = []
    await timed_out(runner, "clean", cleaned=cleaned)
    assert cleaned == [True]


async def test_a_client_that_an_agent_left_open_is_closed_on_the_loop_of_its_connections(runner):
    gc.collect()
    # As a rollout worker's process does: else a busy machine takes longer to collect all of pytest than the loop has
    # to end.
    gc.freeze()
    gc.disable()
    try:
        closed = []
        await play(runner, "leave_a_client", closed=closed)
        await runner.close()
        assert closed == ["agents"]
    finally:
        gc.enable()
        gc.unfreeze()


async def test_a_connection_that_an_agent_keeps_is_closed_with_the_loop(runner):
    ended = asyncio.Event()

    async def serve(reader, writer):
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        await play(runner, "keep_a_connection", port=server.sockets[0].getsockname()[1])
        await runner.close()
        async with asyncio.timeout(60):
            await ended.wait()


async def test_a_client_of_a_closed_loop_is_collected_without_a_word(runner, caplog):
    closed_loop = asyncio.new_event_loop()
    closed_loop.close()

    class Client:
        """A client as of the OpenAI SDK, with connections of a loop that is closed."""

        def __del__(self):
            asyncio.get_running_loop().create_task(self.close())

        async def close(self):
            closed_loop.call_soon(print)

    stale = Client()
    stale.itself = stale
    del stale
    await runner.close()
    gc.collect()
    assert caplog.text == ""


async def test_an_agent_that_takes_no_notice_of_its_end_is_left_behind(hurried, runner, monkeypatch):
    monkeypatch.setattr(own_loop_runner, "END_SECONDS", 0.1)
    notes = await timed_out(runner, "ignore")
    assert notes[-1].startswith("; it takes no notice of being cancelled and is left behind after 0.1 s")
    assert (await play(runner, "answer")).output == "3.1 agents"


async def test_an_agent_that_never_gives_the_loop_back_is_named_and_no_other_runs_there(hurried, runner, monkeypatch):
    monkeypatch.setattr(own_loop_runner, "END_SECONDS", 0.5)
    with pytest.raises(TimeoutError) as caught:
        await play(runner, "nap", "7.1", 2.0, pause=20.0)
    cause, *_ = caught.value.__context__.__notes__
    assert isinstance(cause, Cause)
    assert cause.startswith("meanwhile episode 7.1 blocked the event loop for ")
    assert f"at agent.py:{NAP}" in cause
    with pytest.raises(
        AgentsBlocked, match=rf"the event loop of all agents of this process is lost: episode 7.1 .* at agent.py:{NAP}"
    ):
        await play(runner, "answer")


async def test_the_thread_of_a_plain_function_is_left_behind_at_its_line(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    runner = OwnLoopRunner(InlineRunner.from_name("agent.py:Threaded", tmp_path))
    await runner.start()
    with pytest.raises(TimeoutError) as caught:
        await play(runner, "", seconds=0.3, pause=3.0)
    assert f"; its thread is left behind at agent.py:{NAP}" in "".join(caught.value.__context__.__notes__)
    await runner.close()


async def test_others_time_out_by_the_time_that_they_could_use(runner):
    connecting = asyncio.create_task(play(runner, "connect"))
    await asyncio.sleep(0.3)
    await play(runner, "nap", pause=4.0)
    assert await connecting == AgentResult(reward=1.0)


def test_the_clock_of_the_agents_loop_stands_still_while_a_callback_runs():
    now = [100.0]
    loop = AgentEventLoop(lambda: now[0])

    def block(seconds):
        before = loop.time()
        now[0] += seconds
        assert loop.time() - before == pytest.approx(min(seconds, CALLBACK_SECONDS))

    before = loop.time()
    for seconds in (0.1, 8.0, 0.2):
        loop.call_soon(block, seconds)
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert loop.time() - before == pytest.approx(0.1 + CALLBACK_SECONDS + 0.2)
    loop.close()


async def test_closing_ends_what_runs_and_the_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_loop, "STOP_SECONDS", 60.0)
    (tmp_path / "agent.py").write_text(AGENT)
    before = threading.enumerate()
    runner = OwnLoopRunner(InlineRunner.from_name("agent.py:Agent", tmp_path))
    await runner.start()
    waiting = asyncio.create_task(play(runner, "wait"))
    await asyncio.sleep(0.05)
    (thread,) = [one for one in threading.enumerate() if one.name == "agents" and one not in before]
    await runner.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not thread.is_alive()


def test_the_message_has_agent_place_duration_and_remedy():
    blocked = EventLoopBlocked(
        seconds=8.21, line="agent.py:7", innermost="ssl.py:713 in load_default_certs", episode="3.1", episodes=64
    )
    assert (
        format_blocked(blocked)
        == "episode 3.1 and 63 more blocked the event loop for 8.2 s at agent.py:7 (in ssl.py:713 in"
        " load_default_certs): "
        "make the client once, in the agent's `__init__`, or take `http_client`: each new one loads certificates"
    )
    assert loop_watch.BLOCKED_SECONDS == 1.0


async def test_episodes_of_a_moment_wake_their_loop_once_and_a_closed_loop_refuses_each():
    agents, held = AgentLoop(), threading.Event()

    async def number(value: int) -> int:
        return value

    def run_of(value: int) -> AgentRun[int]:
        return AgentRun(lambda: number(value), copy_context())

    agents.loop.call_soon_threadsafe(held.wait)
    runs = [run_of(value) for value in range(20)]
    for run in runs:
        agents.submit(run)
    assert len(agents._submitted) == 20
    held.set()
    assert await asyncio.gather(*(run.ended for run in runs)) == list(range(20))
    late = run_of(20)
    agents.submit(late)
    assert await late.ended == 20
    await agents.stop()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            agents.submit(run_of(0))
