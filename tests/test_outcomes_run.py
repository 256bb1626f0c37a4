"""Outcomes of pytest, and other exceptions that are no `Exception`, in live runs: attempts fail by name, and the run
trains the others."""

from __future__ import annotations

import pytest

from areal_actors.messages import ActorFailed, EpisodeAbandoned, StepCompleted, TrajectoryExported

pytestmark = pytest.mark.long

QUICK = (
    *(
        "warm_start.steps=1",
        "warm_start.tail_steps=0",
        "evaluation.tasks=0",
        "generation.engine=scripted",
        "sampling.max_tokens=16",
    ),
    *("watchdog.max_failures_in_a_row=64",),
)
PARTS = """
import asyncio, pytest, sys
from openai import AsyncOpenAI
from areal_actors.library.workflow import RolloutWorkflow, workflow_context

class Stop(BaseException):
    pass

def raises(error):
    raise error

OUTCOMES = [
    lambda: pytest.fail("no"),
    lambda: pytest.skip("no"),
    lambda: pytest.exit("no"),
    lambda: sys.exit(3),
    lambda: raises(KeyboardInterrupt("no")),
    lambda: raises(Stop("no")),
]

def end(episode, attempt):
    "The outcome of every other episode at its first attempt."
    group, _, member = episode.partition(".")
    number = 4 * int(group) + int(member)
    if number % 2 == 0 and int(attempt) == 1:
        OUTCOMES[number // 2 % len(OUTCOMES)]()

async def in_a_task(*arguments):
    async def task():
        end(*arguments)
    await asyncio.gather(task(), asyncio.sleep(0.01))

async def call(base_url, api_key, task):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": task["question"]}])

class Agent:
    async def run(self, task, *, base_url, api_key):
        await call(base_url, api_key, task)
        now = workflow_context.get()
        await in_a_task(now.episode, now.attempt)
        return float(now.episode[-1] in "13")

class Groups(RolloutWorkflow):
    async def arun_group(self, engines, data):
        for engine in engines:
            await call(engine.base_url, engine.api_key, data)
        now = workflow_context.get()
        end(now.group + ".0", now.attempt)
        return [float(place % 2) for place, _ in enumerate(engines)]

class Texts:
    async def run(self, task, *, base_url, api_key):
        await call(base_url, api_key, task)
        now = workflow_context.get()
        return f"{now.episode} {now.attempt}"

def reward(task, output):
    end(*output.split())
    return float(output.split()[0][-1] in "13")

async def judge(task, output):
    await asyncio.sleep(0.01)
    await in_a_task(*output.split())
    return float(output.split()[0][-1] in "13")
"""
CAUSES = {
    "raised Failed: no",
    "raised Skipped: no",
    "raised Exit: no",
    "raised SystemExit: 3",
    "raised KeyboardInterrupt",
    "raised Stop: no",
}
PLACES = {
    "agent": ("task.agent={file}:Agent",),
    "process": ("task.agent={file}:Agent", "task.runner=subprocess", "task.processes=2"),
    "group": ("task.agent={file}:Groups",),
    "reward": ("task.agent={file}:Texts", "task.reward={file}:reward"),
    "judge": ("task.agent={file}:Texts", "task.reward={file}:judge"),
}


@pytest.mark.parametrize("place", PLACES)
async def test_outcomes_of_pytest_in_a_run_are_failed_attempts_by_name_and_the_run_goes_on(live, tmp_path, place):
    file = tmp_path / "parts.py"
    file.write_text(PARTS)
    run = live(*QUICK, "steps=3", *(setting.format(file=file) for setting in PLACES[place]))
    assert await run.ended() == 0, run.output()
    log = [message for _, message in await run.log()]
    lost = [event for event in log if isinstance(event, EpisodeAbandoned)]
    seen = {cause for cause in CAUSES for event in lost if cause in event.detail}
    assert seen == CAUSES if place != "group" else len(seen) >= 2
    assert {event.reason for event in lost} == {"reward" if place in ("reward", "judge") else "agent"}
    assert all(any(cause in event.detail for cause in CAUSES) for event in lost), [event.detail for event in lost]
    assert {event.work.attempt for event in lost} == {1}
    trained = {
        (event.trajectory.episode, event.trajectory.attempt) for event in log if isinstance(event, TrajectoryExported)
    }
    assert not trained & {(event.work.episode, event.work.attempt) for event in lost}
    assert not [event for event in log if isinstance(event, ActorFailed)]
    assert len([event for event in log if isinstance(event, StepCompleted)]) == 3


@pytest.mark.parametrize("place", ["agent", "judge"])
async def test_an_outcome_of_pytest_at_every_attempt_ends_the_run_with_its_name(live, tmp_path, place):
    file = tmp_path / "parts.py"
    file.write_text(PARTS.replace("if number % 2 == 0 and int(attempt) == 1:", "if True:"))
    run = live(
        *QUICK, "steps=3", "watchdog.max_failures_in_a_row=8", *(setting.format(file=file) for setting in PLACES[place])
    )
    assert await run.ended() == 1
    (last,) = [line for line in run.output().splitlines() if "ended early" in line][-1:]
    assert any(cause in last for cause in CAUSES), last
    assert not [message for _, message in await run.log() if isinstance(message, TrajectoryExported | ActorFailed)]
