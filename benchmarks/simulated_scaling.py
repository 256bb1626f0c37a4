"""A simulated run whose workers start and drain as `[autoscale]` decides: the real actors in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simulated_run import (
    LONGEST_SECONDS,
    Outcome,
    SimulatedAgent,
    SimulatedEngine,
    SimulatedRun,
    SimulatedTrainer,
    TimedLoop,
)

from areal_actors.core.autoscale_settings import AutoscaleSettings
from areal_actors.core.values import Task
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    KINDS,
    ActorStopped,
    AgentReturned,
    Heartbeat,
    LimitDecided,
    LoadMeasured,
    ScaleDecided,
)
from areal_actors.rewards import Score
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.runtime import Identity, Runtime
from areal_actors.scaling.autopilot import Autopilot
from areal_actors.scaling.decisions import Decider
from areal_actors.scaling.load import LoadFold
from areal_actors.supervision import load_watch
from areal_bus import Stamp
from areal_bus.base import Envelope
from areal_bus.message import Event, Message

TICK_SECONDS = 0.25
Decide = Callable[[Message, float], ScaleDecided | LimitDecided | None]


class ScoredAgent(SimulatedAgent):
    """Returns text, for a reward worker."""

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """Make one call."""
        await super().run(task, base_url=base_url, api_key=api_key)
        return AgentResult(output="text")


@dataclass
class SlowScorer:
    """Scores one text after the other."""

    seconds: float
    free: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def score(self, task: Any, output: str) -> Score:  # noqa: ARG002 - the protocol's
        """Take the seconds of a score."""
        async with self.free:
            await asyncio.sleep(self.seconds)
        return Score(0.5)

    async def close(self) -> None:
        """Nothing is to be closed."""


@dataclass
class ScaledRun(SimulatedRun):
    """A simulated run that starts and drains workers by the decisions of its log."""

    autoscale: AutoscaleSettings = field(default_factory=AutoscaleSettings)
    heartbeat_seconds: float = TICK_SECONDS
    reward_seconds: float = 0.0
    """Seconds of a score by a reward worker; 0: agents score themselves."""
    loads: list[LoadMeasured] = field(default_factory=list)
    decisions: list[ScaleDecided] = field(default_factory=list)
    limits: list[LimitDecided] = field(default_factory=list)
    """Decisions on the limits of the staleness gate."""
    workers: dict[str, tuple[Runtime, asyncio.Task[None]]] = field(default_factory=dict)

    def actors(self, loop: TimedLoop, trainer: SimulatedTrainer) -> dict[str, Actor]:
        """The actors at the start: one worker of each role."""
        found = super().actors(loop, trainer)
        for name in [name for name in found if name.startswith(("rollout_worker", "inference_worker"))]:
            del found[name]
        return found

    def worker(self, loop: TimedLoop, name: str) -> Actor:
        """Make a worker."""
        recipe, role = self.recipe, name.rpartition("-")[0]
        if role == "reward_worker":
            return RewardWorker(SlowScorer(self.reward_seconds), concurrency=recipe.actors.reward_worker.concurrency)
        if role == "rollout_worker":
            agent = (ScoredAgent if self.reward_seconds else SimulatedAgent)(self.bus, self.machine, self.work())
            return RolloutWorker(
                agent, concurrency=recipe.actors.rollout_worker.concurrency, timeout_seconds=LONGEST_SECONDS
            )
        made = InferenceWorker(
            # It reads no weights
            lambda folder: SimulatedEngine(loop, self.machine, recipe.generation.max_num_seqs),  # noqa: ARG005
            name=name,
            concurrency=recipe.actors.inference_worker.concurrency,
        )
        made.tick_seconds = 0.0
        return made

    def start(self, loop: TimedLoop, name: str) -> None:
        """Start a worker."""
        identity = Identity(instance=name, process=name, seed=self.seed)
        runtime = Runtime(self.worker(loop, name), self.bus, identity, now=loop.time, heartbeat_seconds=TICK_SECONDS)
        self.workers[name] = runtime, loop.create_task(runtime.serve())

    async def drain(self, loop: TimedLoop, name: str) -> None:
        """Let a worker finish its work and leave."""
        runtime, task = self.workers.pop(name)
        await runtime.work.finish()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await self.publish(loop, ActorStopped(actor=name, process=name))

    async def publish(self, loop: TimedLoop, event: Event) -> None:
        """Publish as the supervisor."""
        await self.bus.publish(event, Stamp(id=f"{event.subject} {loop.time()}", sender="supervisor", time=loop.time()))

    async def _run(self, loop: TimedLoop) -> Outcome:
        size = self.recipe.algorithm.group_size
        slots = {
            "rollout_worker": self.recipe.actors.rollout_worker.concurrency,
            "inference_worker": min(self.recipe.generation.max_num_seqs, self.machine.slots),
            **({"reward_worker": 1} if self.reward_seconds else {}),
        }
        fold = LoadFold(
            slots, self.recipe.concurrent_groups() * size, size, self.recipe.steps, self.autoscale.window_seconds
        )
        decide = partial(load_watch.decide, Autopilot(self.recipe), Decider(self.autoscale))
        following = [
            loop.create_task(self._events(loop, fold, decide, slots)),
            loop.create_task(self._telemetry(fold)),
        ]
        following.append(loop.create_task(self._ticks(loop, fold)))
        for role in slots:
            self.start(loop, f"{role}-0")
        try:
            return await super()._run(loop)
        finally:
            for task in (*following, *(task for _, task in self.workers.values())):
                task.cancel()
            await asyncio.gather(*following, *(task for _, task in self.workers.values()), return_exceptions=True)

    async def _telemetry(self, fold: LoadFold) -> None:
        async with self.bus.telemetry(Heartbeat, AgentReturned) as inbox:
            async for delivery in inbox:
                fold.receive(delivery.message)

    async def _ticks(self, loop: TimedLoop, fold: LoadFold) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if (load := fold.tick(loop.time())) is not None:
                await self.publish(loop, load)

    async def _events(self, loop: TimedLoop, fold: LoadFold, decide: Decide, roles: dict[str, int]) -> None:
        number, draining = 0, set()
        async for envelope in self.bus.log(follow=True):
            message = opened(envelope)
            fold.receive(message)
            if isinstance(message, LoadMeasured):
                self.loads.append(message)
            if (decision := decide(message, envelope.time)) is not None:
                await self.publish(loop, decision)
            if isinstance(message, LimitDecided):
                self.limits.append(message)
            if isinstance(message, ScaleDecided):
                assert message.role in roles
                self.decisions.append(message)
                for _ in range(message.workers - message.before):
                    number += 1
                    self.start(loop, f"{message.role}-{number}")
                own = [name for name in self.workers if name.startswith(message.role)]
                for name in own[message.workers :] if message.workers < message.before else ():
                    draining.add(loop.create_task(self.drain(loop, name)))


BY_SUBJECT = {kind.subject: kind for kind in KINDS}


def opened(envelope: Envelope) -> Message:
    """Returns the message of an envelope."""
    return envelope.open(BY_SUBJECT[envelope.subject])
