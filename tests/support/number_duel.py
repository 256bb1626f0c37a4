"""A verifiers environment of several turns and agents: two players name numbers in turn, a judge who is not trained
comments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["NumberDuelEnv", "NumberDuelTaskset"]


class DuelData(vf.TaskData):
    info: dict[str, int]


class DuelTask(vf.Task[DuelData]):
    pass


class NumberDuelConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    second: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    judge: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    rounds: int = 2


class NumberDuelEnv(vf.Env[NumberDuelConfig]):
    async def setup(self, agents: vf.Agents) -> None:
        agents.judge.trainable = False

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        player = vf.Task(vf.TaskData(idx=task.data.idx, prompt=None))
        async with agents.first.interaction(player) as first, agents.second.interaction(player) as second:
            received = f"Name a number near {task.data.info['target']}."
            for _ in range(self.config.rounds):
                for interaction in (first, second):
                    received = (await interaction.turn(received)).last_reply
        await agents.judge.run(vf.Task(vf.TaskData(idx=task.data.idx, prompt=f"The duel ended with {received}.")))
        for interaction, payoff in ((first, 1.0), (second, -1.0)):
            interaction.trace.record_reward("payoff", payoff)


class NumberDuelTaskset(vf.Taskset[DuelTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[DuelTask]:
        for number in itertools.count(1):
            yield DuelTask(DuelData(prompt=None, info={"target": number}))
