"""Live runs in which everything fails: the last sentence names what did, and not the agent that waited for it."""

from __future__ import annotations

import pytest

from areal_actors.messages import ActorFailed, EpisodeAbandoned, EventLoopBlocked, TrajectoryExported

pytestmark = pytest.mark.long

QUICK = (
    *("steps=2", "warm_start.steps=1", "warm_start.tail_steps=0", "evaluation.tasks=0", "task.retries=0"),
    *("generation.engine=scripted", "watchdog.max_failures_in_a_row=4"),
)


async def ended(run):
    assert await run.ended() == 1
    last = next(line for line in reversed(run.output().splitlines()) if "ended early" in line)
    return last, [message for _, message in await run.log()]


def of(kind, messages):
    return [message for message in messages if isinstance(message, kind)]


async def test_an_engine_that_does_not_answer_ends_the_run_by_its_name(live):
    run = live(*QUICK, "generation.scripted.token_seconds=1000", "task.timeout_seconds=5")
    last, log = await ended(run)
    assert "engine: the agent did not return within 5 s; its model call had waited" in last
    assert "for inference_worker-0 (no token yet" in last
    assert "raise task.timeout_seconds" not in last
    assert {event.reason for event in of(EpisodeAbandoned, log)} == {"engine"}
    assert not of(TrajectoryExported, log)


async def test_an_agent_that_never_gives_the_loop_back_ends_the_run_by_its_line(live, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import time\nclass Agent:\n  async def run(self, task, *, base_url, api_key):\n    time.sleep(1000)\n"
    )
    run = live(*QUICK, f"task.agent={agent}:Agent", "task.timeout_seconds=4")
    last, log = await ended(run)
    assert "blocked the event loop for" in last
    assert "at agent.py:4" in last
    assert {event.reason for event in of(EpisodeAbandoned, log)} == {"timeout"}
    assert not of(TrajectoryExported, log)


async def test_an_agent_that_never_gives_the_loop_back_once_costs_its_process_and_no_other_episode(live, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(ONCE)
    run = live(
        *QUICK,
        f"task.agent={agent}:Agent",
        "task.timeout_seconds=15",
        "task.retries=2",
        "watchdog.max_failures_in_a_row=64",
    )
    assert await run.ended() == 0, run.output()
    log = [message for _, message in await run.log()]
    (gone,) = {event.work.episode for event in of(EpisodeAbandoned, log) if "at agent.py:11" in event.detail} & {"1.0"}
    assert gone == "1.0"
    assert not [event for event in of(EpisodeAbandoned, log) if event.work.attempts_left == 0]
    failed = [event.reason for event in of(ActorFailed, log) if event.actor == "rollout_worker-0"]
    assert failed
    assert all("the event loop of all agents of this process is lost: episode 1.0" in reason for reason in failed)
    assert all(event.line == "agent.py:11" for event in of(EventLoopBlocked, log) if event.seconds > 10)


ONCE = """
import time
from openai import AsyncOpenAI
from areal_actors.library.workflow import workflow_context

class Agent:
    async def run(self, task, *, base_url, api_key):
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
        now = workflow_context.get()
        if (now.episode, now.attempt) == ("1.0", 1):
            time.sleep(1000)
        await client.chat.completions.create(model="default", messages=[{"role": "user", "content": task["question"]}])
        return 1.0 if int(now.episode[-1]) % 2 else 0.0
"""
