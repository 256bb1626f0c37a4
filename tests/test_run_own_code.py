"""A real run of the user's own code: dataset, agent, reward and algorithm, each a name in a file."""

from __future__ import annotations

import pytest
from support.live_run import LiveRun

from areal_actors.messages import StepCompleted, TrajectoryExported

pytestmark = pytest.mark.slow

OWN = '''
import msgspec
from openai import AsyncOpenAI

from areal_actors.training.algorithms import Grpo


def rows():
    return [
        {"question": f"Ann has {n} apples and buys {m} more. How many?", "answer": str(n + m)}
        for n in range(9)
        for m in range(9)
    ]


def reward(task, output):
    return float(len(output) % 2)


class Agent:
    """Two calls in one conversation, each at a temperature of its own."""

    async def run(self, task, *, base_url, api_key):
        messages = [{"role": "user", "content": task["question"]}]
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            for temperature in (0.5, 1.5):
                answer = await client.chat.completions.create(
                    model="default", messages=messages, temperature=temperature, max_completion_tokens=24
                )
                text = answer.choices[0].message.content
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Are you sure?"}]
        return text


class Halved(Grpo):
    factor: float = 1.0

    def advantages(self, step):
        found = super().advantages(step)
        return msgspec.structs.replace(found, tokens=found.tokens * self.factor)
'''


@pytest.fixture
def live(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    names = {"task.dataset": "rows", "task.agent": "Agent", "task.reward": "reward", "algorithm.path": "Halved"}
    run = LiveRun(
        tmp_path / "runs",
        *(f"{setting}={tmp_path}/own.py:{name}" for setting, name in names.items()),
        "algorithm.name=custom",
        "algorithm.options.factor=0.5",
        "gateway.temperature_policy=as_asked",
        "task.held_out=20",
        "evaluation.tasks=0",
        "steps=3",
    )
    yield run
    run.abort()


@pytest.mark.long
async def test_own_code_is_trained_and_every_call_at_the_temperature_that_it_asked_for(live):
    assert await live.ended() == 0, live.output()
    log = [event for _, event in await live.log()]
    calls = [event.trajectory.interactions for event in log if isinstance(event, TrajectoryExported)]
    assert {tuple(call.temperature for call in made) for made in calls} == {(0.5, 1.5)}
    steps = [event for event in log if isinstance(event, StepCompleted)]
    assert len(steps) == 3
    assert all(step.metrics["train_infer_logprob_diff_max"] < 1e-4 < step.metrics["grad_norm"] for step in steps)
    assert all(step.metrics["parity_tokens"] > 0 for step in steps)
    # Of rewards 0 and 1 in a group of four GRPO's largest advantage is 0.87 or 1.5, and half of it is below 0.8.
    assert all(0 < step.metrics["advantage_max"] < 0.8 for step in steps)
