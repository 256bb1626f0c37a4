"""The whole system in one process, in virtual time, its order drawn from a seed: real actors, toy engines, real
messages."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from support.samples import letters

from areal_actors.batching.assembler import BatcherConfig, group_filter
from areal_actors.batching.batcher import Batcher
from areal_actors.core.errors import AgentError, RewardError
from areal_actors.core.values import SamplingParams, Task, TokenColumns, TrainingSequence, WeightsLocation
from areal_actors.evaluation.evaluator import EvaluationConfig, Evaluator
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.engine import EngineCounters, TokenChunk
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    ActorFailed,
    EpisodeEvaluated,
    EvaluationCompleted,
    ModelRequest,
    RunStarted,
    StepCompleted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.rewards import Score
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.runtime import Identity, Runtime
from areal_actors.sequences.sequence_check import SequenceLimits
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


Sampled = tuple[tuple[int, ...], int, float, int]
"""A token as an engine sampled it: all ids before it, its id, its log-probability, the weight version."""


class ToyEngine:
    """Tokens and lengths follow from the seed of the request; long-tailed, and interruptible between any two tokens."""

    abilities: frozenset[str] = frozenset()

    def __init__(self, seconds_per_token: float, sampled: set[Sampled]) -> None:
        self.weight_version = -1
        self.seconds_per_token = seconds_per_token
        self.sampled = sampled

    async def generate(
        self, request_id: str, prompt_ids: Any, sampling: Any, *, stream: bool = False, resumed_tokens: int = 0
    ) -> Any:
        dice = random.Random(sampling.seed)
        length = min(int(dice.paretovariate(0.8)), sampling.max_tokens)
        ids, logprobs, versions = [], [], []
        for index in range(length):
            await asyncio.sleep(self.seconds_per_token)
            token, logprob = 97 + dice.randrange(26), float(np.float32(-dice.random()))
            self.sampled.add(((*prompt_ids, *ids), token, logprob, self.weight_version))
            ids.append(token)
            logprobs.append(logprob)
            versions.append(self.weight_version)
            if stream and index + 1 < length:
                yield TokenChunk(columns=TokenColumns.of(ids[-1:], logprobs[-1:], versions[-1:]))
        start = length - 1 if stream else 0
        yield TokenChunk(columns=TokenColumns.of(ids[start:], logprobs[start:], versions[start:]), finish_reason="stop")

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        await asyncio.sleep(0.37 * self.seconds_per_token)
        self.weight_version = weight_version

    def take_counters(self) -> EngineCounters:
        return EngineCounters()

    async def close(self) -> None:
        pass


@dataclass
class ToyTrainer:
    """Takes no gradient; remembers what it was given."""

    limits = SequenceLimits(vocabulary=128, context=400)
    weight_version: int = 0
    rows: list[list[TrainingSequence]] = field(default_factory=list)

    def step(self, rows: list[TrainingSequence]) -> dict[str, float]:
        self.rows.append(rows)
        self.weight_version += 1
        return {"loss": 0.0}

    def publish(self, folder: str) -> WeightsLocation:
        return WeightsLocation(folder=folder, checksum=self.checksum(), model="toy")

    def checksum(self) -> str:
        return f"toy-{self.weight_version}"


class Tasks:
    """An endless supply of questions."""

    def __len__(self) -> int:
        return 10

    def task(self, number: int) -> Task:
        return Task(id=f"toy-{number}", data={"question": f"{number}?"})


class ToyAgent:
    """Talks to the gateway over the bus, one turn or two; now and then it raises, hangs, or returns nonsense."""

    def __init__(self, bus: MemoryBus, seed: int, trouble: float) -> None:
        self.bus, self.seed, self.trouble, self.calls = bus, seed, trouble, 0
        self.results: dict[str, AgentResult | AgentError] = {}

    async def start(self) -> None:
        pass

    close = start

    def take_blocks(self) -> list[Any]:
        return []

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        session = base_url.split("/")[3]
        self.calls += 1
        dice = random.Random(f"{self.seed} {session}")
        try:
            result = await self._run(task, session, dice)
        except AgentError as error:
            self.results[session] = error
            raise
        self.results[session] = result
        return result

    async def _run(self, task: Task, session: str, dice: random.Random) -> AgentResult:
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.data["question"]}]
        text = ""
        for turn in range(dice.choice([1, 1, 2])):
            if dice.random() < self.trouble:
                raise AgentError("the toy agent is in a bad mood")
            if dice.random() < self.trouble / 4:
                await asyncio.sleep(10_000)
            text = await self._answer(
                ModelRequest(session=session, messages=tuple(messages), stream=dice.random() < 0.3), turn
            )
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "again"}]
        if dice.random() < self.trouble:
            return AgentResult(output=None)
        return AgentResult(output=text) if dice.random() < 0.8 else AgentResult(reward=1.0)

    async def _answer(self, question: ModelRequest, turn: int) -> str:
        stamp = Stamp(id=f"{question.session}/{turn}", sender="agent", time=0.0)
        text = ""
        async for part in self.bus.request_stream(question, stamp, timeout=1000.0):
            if part.error:
                raise AgentError(part.error)
            text += part.text
        return text


class ToyScorer:
    """A reward that follows from the text; now and then it fails."""

    def __init__(self, trouble: float) -> None:
        self.trouble = trouble

    async def score(self, task: Any, output: str) -> Score:
        fate = int(hashlib.sha256(output.encode()).hexdigest(), 16) % 1000 / 1000
        await asyncio.sleep(fate)
        if fate < self.trouble:
            raise RewardError("the toy reward is undecided")
        return Score(len(output) % 2)

    async def close(self) -> None:
        pass


@dataclass
class Outcome:
    """Result of a simulated run."""

    log: list[Any]
    trainer: ToyTrainer
    sessions_left: int
    runs_of_agent: int
    gate: StalenessGate
    agent: ToyAgent
    kills: int
    sampled: set[Sampled]


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


def opened(outcome: Outcome, kind: Any) -> Iterator[Any]:
    """The log's events of one kind."""
    return (envelope.open(kind) for envelope in outcome.log if envelope.subject == kind.subject)


def ends(outcome: Outcome) -> Counter[str]:
    """Number of results of each training or held-out episode."""
    exported = [event.trajectory.episode for event in opened(outcome, TrajectoryExported)]
    evaluated = [event.work.episode for event in opened(outcome, EpisodeEvaluated)]
    return Counter(exported + evaluated)


def versions(outcome: Outcome) -> list[int]:
    """Weight versions in the order of publication."""
    return [event.weight_version for event in opened(outcome, WeightsPublished)]
