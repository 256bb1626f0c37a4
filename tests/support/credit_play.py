"""Agents that treat their history as agents do, played through a session manager, and the rewards of their calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from conftest import FakeContext
from support.manager_harness import Manager
from support.samples import columns, work

from areal_actors.core.values import Trajectory
from areal_actors.messages import EpisodeScored, Generate, Generated, ModelRequest, SetReward
from areal_actors.sequences.credit import Credit, call_rewards


def user(text, **more):
    return {"role": "user", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@dataclass
class Play:
    """One episode: `ask` makes a call, `answers` are the model's, in the order of the calls."""

    manager: Manager
    session: str
    answers: list[str]
    asked: int = 0
    recorded: list = field(default_factory=list)

    def _next_answer(self):
        self.asked += 1
        return self.answers[(self.asked - 1) % len(self.answers)]

    async def ask(self, *messages, conversation="", **more):
        """Returns the answer of the model to these messages."""
        answer = self._next_answer()
        self.manager.generate = lambda question: [Generated(columns=columns(f"{answer}\n", 0), finish_reason="stop")]
        replies = await self.manager(
            ModelRequest(session=self.session, messages=messages, client_session=conversation, **more)
        )
        assert not any(reply.error for reply in replies), replies
        self.recorded = self.manager.recorded()
        return replies[-1].text

    async def ask_together(self, *requests):
        """Returns the answers to calls that are all in flight before the first one is answered."""
        begun = []
        for messages in requests:
            request = ModelRequest(session=self.session, messages=messages, stream=True)
            answer = [
                Generated(columns=columns(self._next_answer(), 0)),
                Generated(columns=columns("\n", 0), finish_reason="stop"),
            ]
            parts = self.manager.actor.receive(
                request, FakeContext(len(begun), 0.0, {Generate: lambda _, answer=answer: answer}, False, {})
            )
            begun.append((parts, [await anext(parts)]))
        return ["".join(part.text for part in (*first, *[part async for part in parts])) for parts, first in begun]

    async def reward(self, reward, role=""):
        """Set the reward of the last completed call, and the name of its role."""
        (answer,) = await self.manager(SetReward(session=self.session, interaction="", reward=reward, role=role))
        assert not answer.error

    async def end(self, reward) -> Trajectory:
        """Returns the trajectory with this reward at its end."""
        self.recorded = self.manager.recorded()
        (exported,) = await self.manager(EpisodeScored(work=work(), session=self.session, reward=reward))
        return exported.trajectory


async def play(send, agent, answers=("x",), reward=1.0, **options) -> tuple[Trajectory, list[str]]:
    """Returns the trajectory of an agent that made calls, and how the calls that each continues were found."""
    manager = await Manager(send, context=4000, **options).ready()
    opened = await manager.open(work())
    made = Play(manager, opened.session, list(answers))
    returned = await agent(made)
    trajectory = await made.end(reward if returned is None else returned)
    return trajectory, [call.continues for call in made.recorded]


def returns(trajectory: Trajectory, discount: float | None, branch="mean") -> list[float]:
    """R of every call, in order of completion."""
    rewards = call_rewards(trajectory, Credit(discount=discount, branch=branch))
    return [rewards[call.id] for call in trajectory.interactions]
