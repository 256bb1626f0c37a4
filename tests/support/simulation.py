"""The whole system in one process, in virtual time, its order drawn from a seed: real actors, toy engines, real
messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.samples import letters
from support.toy_parts import Outcome, Sampled, Tasks, ToyAgent, ToyEngine, ToyScorer, ToyTrainer, opened

from areal_actors.batching.assembler import BatcherConfig, group_filter
from areal_actors.batching.batcher import Batcher
from areal_actors.core.values import SamplingParams
from areal_actors.evaluation.evaluator import EvaluationConfig, Evaluator
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    ActorFailed,
    EpisodeEvaluated,
    EvaluationCompleted,
    RunStarted,
    StepCompleted,
    TrajectoryExported,
)
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.runtime import Identity, Runtime
from areal_actors.staleness.ledger import StalenessGateConfig
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_actors.tasks.task_source import TaskSource
from areal_actors.training.trainer import Trainer
from areal_bus import Stamp
from areal_bus.memory import MemoryBus
from areal_bus.recorded import Tape

GROUP, BATCH, TASKS_EVALUATED = 2, 3, 2
SIZES = {"group_size": GROUP, "batch_size": BATCH}
EVALUATION = EvaluationConfig(tasks=TASKS_EVALUATED, every_steps=2, max_concurrent=2)
MORTAL = (
    ("inference_worker-0",),
    ("inference_worker-1",),
    ("inference_worker-0", "inference_worker-1"),
    ("rollout_worker-0",),
    ("rollout_worker-0", "rollout_worker-1"),
    ("reward_worker-0",),
    ("session_manager-0",),
    ("session_manager-0", "rollout_worker-1"),
    ("staleness_gate-0", "task_source-0", "batcher-0", "evaluator-0"),
    ("batcher-0",),
)
"""Actors that die together: one, or all in one process."""
SAMPLING = SamplingParams(max_tokens=40)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time passes only when no task is ready, and then at once."""

    def __init__(self) -> None:
        super().__init__()
        self.virtual = 1_000_000.0
        select = self._selector.select

        def leap(timeout: float | None = None) -> Any:
            if timeout is None:
                raise RuntimeError("deadlock: everybody waits, and nobody for a time")
            self.virtual += timeout
            return select(0)

        self._selector.select = leap

    def time(self) -> float:
        return self.virtual

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Work for a thread is done at once: a thread's own pace would make every run another one."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the future carries whatever the function raised
            future.set_exception(error)
        return future


@dataclass
class Simulation:
    """One seeded run: build it, `run()` it, look at the outcome."""

    seed: int
    steps: int = 5
    max_staleness: int = 1
    batcher: BatcherConfig = field(default_factory=BatcherConfig)
    trouble: float = 0.05
    kills: int = 5
    retries: int = 1
    surplus: int = 0
    tapes: Path | None = None
    evaluation: EvaluationConfig = EVALUATION
    talker: type[ToyAgent] = ToyAgent
    sampled: set[Sampled] = field(default_factory=set)

    def run(self) -> Outcome:
        """In a loop of its own, in virtual time."""
        with contextlib.closing(VirtualTimeLoop()) as loop:
            return loop.run_until_complete(asyncio.wait_for(self._run(loop), 100_000))

    def actors(self, bus: MemoryBus, trainer: ToyTrainer, agent: ToyAgent) -> dict[str, Callable[[], Actor]]:
        """Factory of each actor."""
        gate = StalenessGateConfig(max_staleness=self.max_staleness, max_concurrent=8, surplus_groups=self.surplus)
        rollout = lambda: RolloutWorker(agent, concurrency=4, timeout_seconds=400.0)  # noqa: E731
        return {
            "staleness_gate-0": lambda: StalenessGate(
                gate, **SIZES, steps=self.steps, after_baseline=self.evaluation.baseline == "before"
            ),
            "task_source-0": lambda: TaskSource(
                Tasks(),
                group_size=GROUP,
                sampling=SAMPLING,
                retries=self.retries,
                surplus_after=self.steps - 1 if self.surplus else None,
            ),
            "batcher-0": lambda: Batcher(
                self.batcher,
                **SIZES,
                max_staleness=self.max_staleness,
                steps=self.steps,
                keeps=group_filter(self.batcher, Path()),
            ),
            "evaluator-0": lambda: Evaluator(
                self.evaluation,
                [Tasks().task(-1 - n) for n in range(TASKS_EVALUATED)],
                steps=self.steps,
                sampling=SAMPLING,
                retries=self.retries,
            ),
            "session_manager-0": self.session_manager,
            "rollout_worker-0": rollout,
            "rollout_worker-1": rollout,
            "reward_worker-0": lambda: RewardWorker(ToyScorer(self.trouble), concurrency=4),
            "inference_worker-0": lambda: self.inference("inference_worker-0", 1.0),
            "inference_worker-1": lambda: self.inference("inference_worker-1", 1.7),
            "trainer-0": lambda: Trainer(
                lambda progress: trainer, lambda version: f"v{version}", asyncio.get_running_loop().time
            ),
        }

    @staticmethod
    def session_manager() -> SessionManager:
        manager = SessionManager(
            GatewaySettings(), lambda folder: letters(), secret=b"secret", max_model_len=400, serve_http=False
        )
        manager.tick_seconds = (
            20.0  # leases are long here; looking every second would cost more than the rest of the run
        )
        return manager

    def inference(self, name: str, seconds_per_token: float) -> InferenceWorker:
        worker = InferenceWorker(lambda folder: ToyEngine(seconds_per_token, self.sampled), name=name, concurrency=64)
        worker.tick_seconds = 0.0  # a toy engine has nothing to count
        return worker

    async def _run(self, loop: VirtualTimeLoop) -> Outcome:  # noqa: C901 - one run, in order
        bus = MemoryBus(seed=self.seed)
        dice = random.Random(self.seed)
        trainer, agent = ToyTrainer(), self.talker(bus, self.seed, self.trouble)
        make = self.actors(bus, trainer, agent)
        living: dict[str, tuple[Actor, asyncio.Task[None]]] = {}
        tapes = {name: Tape.record(self.tapes / f"{name}.tape") for name in make} if self.tapes else {}

        def start(name: str) -> None:
            actor = make[name]()
            runtime = Runtime(
                actor,
                bus,
                Identity(instance=name, process=name, seed=self.seed),
                now=loop.time,
                tape=tapes.get(name),
                heartbeat_seconds=50,
            )
            living[name] = (actor, loop.create_task(runtime.serve()))

        for name in make:
            start(name)
        await asyncio.sleep(1)
        published = 0

        async def publish(event: Any) -> None:
            nonlocal published
            published += 1
            await bus.publish(event, Stamp(id=f"supervisor-{published}", sender="supervisor", time=loop.time()))

        await publish(RunStarted(recipe={}, profile="", reason="", folder=""))
        over = loop.create_task(self._until_over(bus))
        kills = 0
        while not over.done():
            await asyncio.wait(
                {over, *(task for _, task in living.values())},
                timeout=dice.uniform(5, 60),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for _, task in living.values():
                if task.done():
                    task.result()
            if kills < self.kills and not over.done():
                kills += 1
                victims = dice.choice(MORTAL)
                for name in victims:
                    await _kill(living[name][1])
                for name in victims:
                    await publish(ActorFailed(actor=name, process=name, reason="the simulation killed it"))
                    start(name)
        await asyncio.sleep(2_000)
        sessions, gate = living["session_manager-0"][0], living["staleness_gate-0"][0]
        assert isinstance(sessions, SessionManager)
        assert isinstance(gate, StalenessGate)
        for _, task in living.values():
            await _kill(task)
        for tape in tapes.values():
            tape.close()
        log = [envelope async for envelope in bus.log()]
        return Outcome(log, trainer, len(sessions.registry), agent.calls, gate, agent, kills, self.sampled)

    async def _until_over(self, bus: MemoryBus) -> None:
        stepped, evaluated = 0, 0
        async for envelope in bus.log(follow=True):
            stepped += envelope.subject == StepCompleted.subject
            if envelope.subject == EvaluationCompleted.subject:
                evaluated += envelope.open(EvaluationCompleted).weight_version == self.steps
            if stepped == self.steps and evaluated == 2:
                return


async def _kill(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def ends(outcome: Outcome) -> Counter[str]:
    """Number of results of each training or held-out episode."""
    exported = [event.trajectory.episode for event in opened(outcome, TrajectoryExported)]
    evaluated = [event.work.episode for event in opened(outcome, EpisodeEvaluated)]
    return Counter(exported + evaluated)
