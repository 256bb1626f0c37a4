"""External agents with an OpenAI client at a gateway of another host, which is killed while their sessions are open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI
from support.joined_runs import Start, invited, runs_beside
from support.live_run import PATIENT, ROOT, LiveRun
from support.other_host import Joiner, OtherHost

from areal_actors.messages import ActorStarted, EpisodeAbandoned, StepCompleted, TrajectoryExported

pytestmark = pytest.mark.long
GROUP, BATCH = 2, 2
ONLINE = (
    "run=gsm8k-grpo",
    "profile=embedded",
    "warm_start.steps=40",
    "warm_start.tail_steps=10",
    f"algorithm.group_size={GROUP}",
    f"trainer.batch_size={BATCH}",
    "gateway.joined=1",
    "gateway.idle_timeout_seconds=15",
)
"""A run of external agents; groups with a lost session are given up after 15 s."""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[OtherHost]:
    with OtherHost(tmp_path / "other", hidden=tmp_path / "runs") as host:
        yield host


@pytest.fixture
def live(tmp_path: Path, other: OtherHost) -> Iterator[Start]:
    with runs_beside(other, tmp_path / "runs") as start:
        yield start


async def gateway_of(joiner: Joiner) -> str:
    """The address that `areal-actors join` has printed."""
    until = time.monotonic() + PATIENT
    while " at http" not in joiner.output():
        assert joiner.process.poll() is None, joiner.output()
        assert time.monotonic() < until, joiner.output()
        await asyncio.sleep(0.05)
    return joiner.output().partition(" at ")[2].split()[0]


class Agents:
    """External agents that play one task after another until they are stopped: as many sessions of each as a group has.

    A session that is lost with its gateway is played again as another one.
    """

    def __init__(self, url: str, admin_key: str) -> None:
        self.gateway = AsyncOpenAI(base_url=url, api_key=admin_key, max_retries=1000)
        self.tasks = count()
        self.lost: list[str] = []
        self.open: set[str] = set()
        """Sessions that have had a call, and not ended."""

    async def play(self) -> None:
        while True:
            task = f"task-{next(self.tasks)}"
            for _ in range(GROUP):
                while not await self._session(task):
                    continue

    async def _session(self, task: str) -> bool:
        """Play a session; returns False if it was lost."""
        given = await self.gateway.post(
            "/rl/start_session", body={"task_id": task, "group_size": GROUP}, cast_to=dict[str, Any]
        )
        name, url = given["session_id"], given["base_url"]
        messages: Any = [{"role": "user", "content": "What is 2 + 3?"}]
        try:
            async with AsyncOpenAI(base_url=url, api_key=given["api_key"]) as client:
                for _ in range(2):
                    completion = await client.chat.completions.create(model="any", messages=messages)
                    messages += [
                        completion.choices[0].message.model_dump(),
                        {"role": "user", "content": "Are you sure?"},
                    ]
                    self.open.add(name)
                lifecycle = client.with_options(base_url=url.removesuffix("/v1"))
                await lifecycle.post("/rl/set_reward", body={"reward": int(task[-1]) % 2}, cast_to=dict[str, Any])
                await lifecycle.post("/rl/end_session", body={}, cast_to=dict[str, Any])
        except (APIConnectionError, APIStatusError) as error:
            self.lost.append(f"{name}: {error}")
        self.open.discard(name)
        return not self.lost or not self.lost[-1].startswith(f"{name}:")


@asynccontextmanager
async def playing(run: LiveRun, url: str) -> AsyncIterator[Agents]:
    """Agents that play beside a run."""
    agents = Agents(url, (run.folder / "admin_key").read_text())
    tasks = [asyncio.create_task(agents.play()) for _ in range(2)]
    try:
        yield agents
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await agents.gateway.close()


async def until(run: LiveRun, condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENT
    while not condition():
        assert run.process.poll() is None, run.output()
        assert time.monotonic() < end, f"{what}: {run.output()}"
        await asyncio.sleep(0.01)


async def assert_exact(run: LiveRun, steps: int, agents: Agents) -> None:
    """Every step was done once; no session was exported twice, and no attempt that the killed gateway lost was
    exported."""
    log = [event for _, event in await run.log()]
    assert [event.step for event in log if isinstance(event, StepCompleted)] == list(range(1, steps + 1))
    exported = [event.trajectory.episode for event in log if isinstance(event, TrajectoryExported)]
    assert len(exported) == len(set(exported))
    attempts = {
        (event.trajectory.episode, event.trajectory.attempt) for event in log if isinstance(event, TrajectoryExported)
    }
    given_up = [event.work for event in log if isinstance(event, EpisodeAbandoned) and event.reason == "session"]
    lost = [(work.episode, work.attempt) for work in given_up]
    assert len(lost) == len(set(lost)) > 0
    assert not {*lost} & attempts
    assert len(lost) <= len(agents.lost)


async def test_agents_go_on_at_a_gateway_of_another_host_that_was_killed_with_their_sessions(live, other):
    run = live("steps=4", *ONLINE, recipe=ROOT / "recipes" / "online.toml", small=False)
    credential = await invited(run, other)
    joiner = other.join("--credential", str(credential), "--role", "gateway")
    async with run.listening(), playing(run, await gateway_of(joiner)) as agents:
        await run.until(StepCompleted, 1)
        await until(run, lambda: agents.open, "no session is open")
        joiner.worker().kill()
        assert await run.ended() == 0, run.output() + joiner.output()
    assert joiner.ended() == 0, joiner.output()
    await assert_exact(run, 4, agents)
    assert [event.process for event in run.received(ActorStarted) if event.actor == "session_manager-0"] == [
        "session_manager-10000",
        "session_manager-10001",
    ]


async def test_agents_go_on_at_the_runs_own_host_which_has_taken_over_the_gateway_of_a_lost_one(live, other):
    run = live("steps=4", "watchdog.heartbeat_seconds=6", *ONLINE, recipe=ROOT / "recipes" / "online.toml", small=False)
    credential = await invited(run, other)
    joiner = other.join("--credential", str(credential), "--role", "gateway")
    async with run.listening():
        async with playing(run, await gateway_of(joiner)) as agents:
            await run.until(StepCompleted, 1)
            await until(run, lambda: agents.open, "no session is open")
            for process in (joiner.process, joiner.worker()):
                process.kill()
            await until(run, lambda: "is served here now" in run.output(), "nobody has taken the gateway over")
        url = run.output().partition("address=")[2].split()[0]
        async with playing(run, url) as later:
            assert await run.ended() == 0, run.output() + joiner.output()
    agents.lost += [*agents.open, *later.lost]
    await assert_exact(run, 4, agents)
