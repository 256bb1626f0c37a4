"""A run of the real actors in virtual time.

Gate, task source, rollout worker, gateway, batcher and trainer around a simulated machine.
The engine decodes as `simulated_hardware.Decoder` does, the trainer takes the seconds of its step and learns nothing,
and messages take no time. Limits are those of a resolved recipe. The same seed gives the same run, whatever else the
computer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from history import ROOT
from simulated_hardware import Decoder, Machine, Work

from areal_actors.batching.batcher import Batcher
from areal_actors.core.errors import AgentError
from areal_actors.core.values import SamplingParams, Task, TokenColumns, TrainingSequence, WeightsLocation
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.engine import EngineCounters, TokenChunk
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    CapacityGranted,
    EpisodeAbandoned,
    ModelRequest,
    RunStarted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.episode_context import workflow_context
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.runtime import Identity, Runtime
from areal_actors.sequences.sequence_check import SequenceLimits
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_actors.tasks.task_source import TaskSource
from areal_actors.training.trainer import Trainer
from areal_bus import Stamp
from areal_bus.base import Envelope
from areal_bus.memory import MemoryBus

sys.path.append(str(ROOT / "tests"))
from support.samples import TOOLS_TEMPLATE, letters
from support.simulation import VirtualTimeLoop
from support.toy_parts import Tasks

LONGEST_SECONDS = 1e6
"""Virtual seconds after which a run counts as stuck."""
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


class TimedLoop(VirtualTimeLoop):
    """Virtual time in which work in a thread takes the seconds that it claims."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed = 0.0
        """Seconds of the work that was called last."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Call the function at once; its result comes after the seconds that it has claimed."""
        done = super().run_in_executor(executor, func, *args)
        seconds, self.claimed = self.claimed, 0.0
        if not seconds:
            return done
        later: asyncio.Future[Any] = self.create_future()
        self.call_later(seconds, lambda: later.cancelled() or later.set_result(done.result()))
        return later


class SimulatedEngine:
    """Implements `GenerationEngine`: decodes on the machine, in virtual time.

    The prompt is the length of the answer.
    """

    abilities: frozenset[str] = frozenset()

    def __init__(self, loop: asyncio.AbstractEventLoop, machine: Machine, slots: int) -> None:
        self.loop = loop
        self.decoder = Decoder(machine, min(slots, machine.slots), at=loop.time())
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.count = 0
        self.timer: asyncio.TimerHandle | None = None

    async def generate(
        self,
        request_id: str,  # noqa: ARG002 - the protocol's
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,  # noqa: ARG002 - the protocol's
        resumed_tokens: int = 0,  # noqa: ARG002 - nothing is interrupted
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a completion of random letters in one chunk."""
        tokens = min(int(bytes(prompt_ids).decode().partition(":")[2].partition("\n")[0]), sampling.max_tokens)
        number, self.count = self.count, self.count + 1
        self.ends[number] = self.loop.create_future()
        self.decoder.advance(self.loop.time())
        self.decoder.add(number, tokens)
        self._await_next()
        try:
            await self.ends[number]
        finally:
            if not self.ends.pop(number).done():
                self.decoder.remove(number)
                self._await_next()
        dice = np.random.default_rng(sampling.seed)
        ids = dice.choice(LETTERS, tokens).tolist()
        columns = TokenColumns.of(ids, [-1.0] * tokens, self.decoder.versions(number, tokens))
        yield TokenChunk(columns=columns, finish_reason="stop")

    def _await_next(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_at(self.decoder.next_end(), self._next) if self.decoder.running else None

    def _next(self) -> None:
        self.decoder.advance(self.loop.time())
        for number in self.decoder.take_ended():
            self.ends[number].set_result(None)
        self._await_next()

    # Nothing is read
    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:  # noqa: ARG002
        """Sample later tokens with these weights; the seconds of it are in those of the step."""
        self.decoder.advance(self.loop.time())
        self.decoder.load(weight_version)

    def take_counters(self) -> EngineCounters:
        """Counts nothing."""
        return EngineCounters()

    async def close(self) -> None:
        """Nothing is to be closed."""


@dataclass
class SimulatedTrainer:
    """Implements `TrainingEngine`: takes its seconds, and counts the tokens that it is given."""

    loop: TimedLoop
    machine: Machine
    weight_version: int = 0
    sampled: int = 0
    """Sampled tokens of all batches."""
    trained: int = 0
    """Those of them that are in the loss."""
    oldest: int = 0
    """Largest staleness of a token in the loss."""
    limits: ClassVar[SequenceLimits] = SequenceLimits(vocabulary=128, context=2048)

    def step(self, rows: Sequence[TrainingSequence]) -> dict[str, float]:
        """Count a step."""
        for row in rows:
            self.sampled += int((row.versions >= 0).sum())
            self.trained += int(row.loss_mask.sum())
            if row.loss_mask.any():
                self.oldest = max(self.oldest, self.weight_version - int(row.versions[row.loss_mask].min()))
        self.weight_version += 1
        self.loop.claimed = self.machine.step_seconds
        return {"loss": 0.0}

    def publish(self, folder: str) -> WeightsLocation:
        """Name the weights of a step."""
        return WeightsLocation(folder=folder, checksum=self.checksum(), model="simulated")

    def checksum(self) -> str:
        """Name of the weights."""
        return f"simulated-{self.weight_version}"


class SimulatedAgent:
    """Asks for an answer of the length that the episode's name has, and is content with it."""

    def __init__(self, bus: MemoryBus, machine: Machine, work: Work) -> None:
        self.bus, self.machine, self.work = bus, machine, work

    async def start(self) -> None:
        """Nothing is to be loaded."""

    close = start

    def take_blocks(self) -> list[Any]:
        """It blocks nothing."""
        return []

    # The bus needs no key
    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:  # noqa: ARG002
        """Make one call."""
        tokens = self.machine.tokens(self.work.seed, workflow_context.get().episode, self.work.sigma)
        session = base_url.split("/")[3]
        question = ModelRequest(session=session, messages=({"role": "user", "content": str(tokens)},))
        stamp = Stamp(id=f"{session}/call", sender="agent", time=0.0)
        async with contextlib.aclosing(self.bus.request_stream(question, stamp, timeout=LONGEST_SECONDS)) as parts:
            async for part in parts:
                if part.error:
                    raise AgentError(part.error)
        return AgentResult(reward=float(random.Random(session).random() < 0.5))


@dataclass(frozen=True)
class Outcome:
    """A run from its first grant to its last weights."""

    seconds: float
    trainer_busy: float
    """Share of the time in optimizer steps."""
    masked: float
    """Share of the sampled tokens of all batches that are not in the loss."""
    dropped: float
    """Share of exported trajectories that were dropped, those of the surplus included."""
    surplus: int
    """Episodes that still ran when the last batch was formed, and were abandoned."""
    oldest: int
    """Largest staleness of a trained token."""


@dataclass
class SimulatedRun:
    """A recipe on a machine. Its steps, sizes, bound, limits and exit policy are those of the recipe."""

    recipe: Recipe
    machine: Machine
    sigma: float
    seed: int = 0
    bus: MemoryBus = field(default_factory=lambda: MemoryBus(lease_seconds=60.0))
    heartbeat_seconds: float = LONGEST_SECONDS
    """Virtual seconds between two heartbeats of an actor."""

    def work(self) -> Work:
        """Sizes of the run."""
        recipe = self.recipe
        return Work(
            recipe.steps,
            recipe.trainer.batch_size,
            recipe.algorithm.group_size,
            self.sigma,
            recipe.staleness_gate.max_staleness,
            self.seed,
        )

    def outcome(self) -> Outcome:
        """Run it, in a loop of its own."""
        with contextlib.closing(TimedLoop()) as loop:
            return loop.run_until_complete(asyncio.wait_for(self._run(loop), LONGEST_SECONDS))

    def actors(self, loop: TimedLoop, trainer: SimulatedTrainer) -> dict[str, Actor]:
        """The actors of the run, as `processes/process.py` makes them."""
        recipe, machine, work = self.recipe, self.machine, self.work()
        gate, batch, group = recipe.staleness_gate, work.batch_size, work.group_size
        sampling = SamplingParams(max_tokens=machine.most_tokens)
        manager = SessionManager(
            GatewaySettings(),
            lambda folder: letters(template=TOOLS_TEMPLATE),  # noqa: ARG005 - there is one
            secret=b"simulated",
            max_model_len=2 * machine.most_tokens,
            concurrency=recipe.actors.session_manager.concurrency,
            serve_http=False,
            seed=self.seed,
        )
        manager.tick_seconds = 0.0
        inference = InferenceWorker(
            # It reads no weights
            lambda folder: SimulatedEngine(loop, machine, recipe.generation.max_num_seqs),  # noqa: ARG005
            name="inference_worker-0",
            concurrency=recipe.actors.inference_worker.concurrency,
        )
        inference.tick_seconds = 0.0
        rollouts = recipe.actors.rollout_worker
        workers = {
            f"rollout_worker-{number}": RolloutWorker(
                SimulatedAgent(self.bus, machine, work),
                concurrency=rollouts.concurrency,
                timeout_seconds=LONGEST_SECONDS,
            )
            for number in range(rollouts.count)
        }
        return {
            "staleness_gate-0": StalenessGate(
                gate, group_size=group, batch_size=batch, steps=work.steps, chosen=recipe.autopilot.lowest()
            ),
            "task_source-0": TaskSource(
                Tasks(),
                group_size=group,
                sampling=sampling,
                retries=0,
                surplus_after=work.steps - 1 if gate.surplus_groups else None,
            ),
            "batcher-0": Batcher(
                recipe.batcher, group_size=group, batch_size=batch, max_staleness=work.max_staleness, steps=work.steps
            ),
            "session_manager-0": manager,
            **workers,
            "inference_worker-0": inference,
            # Nothing to show
            "trainer-0": Trainer(lambda progress: trainer, lambda version: f"v{version}", loop.time),  # noqa: ARG005
        }

    async def _run(self, loop: TimedLoop) -> Outcome:
        trainer = SimulatedTrainer(loop, self.machine)
        serving = []
        for name, actor in self.actors(loop, trainer).items():
            identity = Identity(instance=name, process=name, seed=self.seed)
            serving.append(
                loop.create_task(
                    Runtime(actor, self.bus, identity, now=loop.time, heartbeat_seconds=self.heartbeat_seconds).serve()
                )
            )
        await asyncio.sleep(1)
        await self.bus.publish(
            RunStarted(recipe={}, profile="", reason="", folder=""), Stamp(id="start", sender="run", time=loop.time())
        )
        over = loop.create_task(self._last_weights())
        await asyncio.wait({over, *serving}, return_when=asyncio.FIRST_COMPLETED)
        for task in serving:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        return self._measured(trainer, [envelope async for envelope in self.bus.log()])

    async def _last_weights(self) -> None:
        async for envelope in self.bus.log(follow=True):
            if (
                envelope.subject == WeightsPublished.subject
                and envelope.open(WeightsPublished).weight_version == self.recipe.steps
            ):
                return

    def _measured(self, trainer: SimulatedTrainer, log: Sequence[Envelope]) -> Outcome:
        begun = next(envelope.time for envelope in log if envelope.subject == CapacityGranted.subject)
        seconds = max(envelope.time for envelope in log if envelope.subject == WeightsPublished.subject) - begun
        counts = Counter(envelope.subject for envelope in log)
        return Outcome(
            seconds=round(seconds, 6),
            trainer_busy=round(self.recipe.steps * self.machine.step_seconds / seconds, 4),
            masked=round(1 - trainer.trained / trainer.sampled, 4),
            dropped=round(counts[TrajectoryDropped.subject] / counts[TrajectoryExported.subject], 4),
            surplus=counts[EpisodeAbandoned.subject],
            oldest=trainer.oldest,
        )
