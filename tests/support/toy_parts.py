"""Toy engine, trainer, tasks, agent and scorer of the simulated system."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from areal_actors.core.errors import AgentError, RewardError
from areal_actors.core.values import Task, TokenColumns, TrainingSequence, WeightsLocation
from areal_actors.generation.engine import EngineCounters, TokenChunk
from areal_actors.messages import (
    ModelRequest,
    WeightsPublished,
)
from areal_actors.rewards import Score
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.sequences.sequence_check import SequenceLimits
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_bus import Stamp
from areal_bus.memory import MemoryBus

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


def opened(outcome: Outcome, kind: Any) -> Iterator[Any]:
    """The log's events of one kind."""
    return (envelope.open(kind) for envelope in outcome.log if envelope.subject == kind.subject)


def versions(outcome: Outcome) -> list[int]:
    """Weight versions in the order of publication."""
    return [event.weight_version for event in opened(outcome, WeightsPublished)]
