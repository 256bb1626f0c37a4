"""One process of `scale.py`.

Control, gateways and trainer as in `orchestration_process.py`, or many scripted workers on one connection.
Started as `python benchmarks/scale_process.py RUN_FOLDER NAME`. `rollout_workers` and `inference_workers` have all
workers of their kind: real actors, each with its subscriptions, heartbeat and leases, whose agents make one HTTP call
and whose engines sleep.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
from orchestration_process import FIRST_TOKEN, VOCABULARY, NoGradient

from areal_actors.core.errors import AgentError
from areal_actors.core.values import SamplingParams, Task, TrainingSequence
from areal_actors.folder.run_folder import RunFolder
from areal_actors.generation.engine import TokenChunk
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.messages import EventLoopBlocked
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.process import GARBAGE_THRESHOLDS, end_with_parent, read_address, serve_actors
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.runtime import Identity, Runtime
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.engine import Progress, TrainingEngine
from areal_actors.training.trainer import Trainer
from areal_bus.nats import NatsBus

SIZES = "scale.msgpack"
"""File of the run's folder with its `Sizes`."""
ORDINARY_TOKENS = 100
"""Token ids from `FIRST_TOKEN` on that are ordinary words."""
TRIES = 3
PAUSE_SECONDS = 1.0
SPREAD = 0.25
"""Answers take this share more or less than the mean; uniform."""
ROLLOUTS, INFERENCE = "rollout_workers", "inference_workers"


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of a measured run."""

    in_flight: int
    """Episodes in flight in steady state."""
    rate: float
    """Episodes that the trainer takes per second."""
    steps: int
    tokens: int
    """Tokens of an answer."""
    rollout_workers: int
    inference_workers: int
    gateways: int = 1
    group_size: int = 4

    @property
    def batch_size(self) -> int:
        """Groups of a batch: ten batches are in flight."""
        return max(self.in_flight // (10 * self.group_size), 2)

    @property
    def step_seconds(self) -> float:
        """Seconds of an optimizer step."""
        return self.batch_size * self.group_size / self.rate

    @property
    def answer_seconds(self) -> float:
        """Mean seconds of an answer: as many episodes as are wanted are in flight at this rate (Little's law)."""
        return self.in_flight / self.rate

    @property
    def max_staleness(self) -> int:
        """Bound with room for the groups in flight, the batch in training, and a batch and a half that wait."""
        longest_of_group = 1 + SPREAD * (self.group_size - 1) / (self.group_size + 1)
        return round(self.in_flight / self.group_size / self.batch_size * longest_of_group + 2.5) - 1


class TimedStep(NoGradient):
    """A `TrainingEngine` whose step takes its seconds."""

    def __init__(self, model: Path, seconds: float) -> None:
        super().__init__(model)
        self.seconds = seconds

    def step(self, rows: Sequence[TrainingSequence]) -> dict[str, float]:
        """Sleep for a step."""
        time.sleep(self.seconds)
        return super().step(rows)


class SleepingEngine(ScriptedEngine):
    """Yields the same number of tokens for every request, after seconds that its seed draws.

    Answers of the first weights are shortened by an age that the prompt, which a group shares, draws: the run begins in
    its steady state, as if it had been running for long, and not with a wave of answers that all begin at once.
    """

    def __init__(self, sizes: Sizes) -> None:
        answer = [(FIRST_TOKEN + index % ORDINARY_TOKENS, -1.0) for index in range(sizes.tokens)]
        super().__init__(lambda _prompt, _seed: answer, vocabulary_size=VOCABULARY)
        self.seconds = sizes.answer_seconds
        self.oldest = self.seconds * (1 + SPREAD * (sizes.group_size - 1) / (sizes.group_size + 1))
        """Mean seconds of the longest answer of a group."""

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield the completion in one chunk, at its end."""
        seconds = self.seconds * random.Random(sampling.seed).uniform(1 - SPREAD, 1 + SPREAD)
        age = random.Random(str(prompt_ids)).uniform(0.0, self.oldest) if self.weight_version == 0 else 0.0
        await asyncio.sleep(max(seconds - age, 0.0))
        async for chunk in super().generate(
            request_id, prompt_ids, sampling, stream=stream, resumed_tokens=resumed_tokens
        ):
            yield chunk


class ScriptedAgent:
    """An `AgentRunner` whose agents make one model call over HTTP and return a reward.

    All share the connections of a process.
    """

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self.client = client

    async def start(self) -> None:
        """Nothing is to be loaded."""

    close = start

    def take_blocks(self) -> list[EventLoopBlocked]:
        """It blocks nothing."""
        return []

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """Make one call; as with the usual clients, a broken connection is tried again."""
        body = {"model": "default", "messages": [{"role": "user", "content": task.data["question"]}]}
        headers = {"Authorization": f"Bearer {api_key}"}
        for left in reversed(range(TRIES)):
            try:
                async with self.client.post(f"{base_url}/chat/completions", json=body, headers=headers) as answer:
                    await answer.read()
            except aiohttp.ClientError as error:
                if not left:
                    raise AgentError(str(error)) from error
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            break
        if answer.status != 200:
            raise AgentError(f"status {answer.status}: {(await answer.text())[:200]}")
        return AgentResult(reward=float(random.Random(base_url).random() < 0.5))


def trainer(context: BuildContext) -> Actor:
    """The trainer without a gradient, whose steps take their seconds."""
    seconds = sizes_of(context.folder).step_seconds

    def prepare(progress: Progress) -> TrainingEngine:
        progress("nothing", 0, 0, {})
        return TimedStep(context.folder.model, seconds)

    return Trainer(
        prepare, lambda version: f"none/v{version}", time.time, checkpoints=CheckpointStore(context.folder.path)
    )


def sizes_of(folder: RunFolder) -> Sizes:
    """Sizes of the run in this folder."""
    return msgspec.msgpack.decode((folder.path / SIZES).read_bytes(), type=Sizes)


async def serve_workers(folder: RunFolder, name: str) -> None:
    """Serve all workers of a kind until the parent ends or one of them fails."""
    server, recipe, sizes = read_address(), folder.recipe(), sizes_of(folder)
    threading.Thread(target=end_with_parent, daemon=True).start()
    bus = await NatsBus.connect(
        server.url, recipe.run, name=name, token=server.token, lease_seconds=recipe.bus.lease_seconds
    )
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for instance, actor in workers(sizes, name, client).items():
            runtime = Runtime(actor, bus, Identity(instance=instance, process=name))
            tasks.create_task(runtime.serve())


def workers(sizes: Sizes, name: str, client: aiohttp.ClientSession) -> dict[str, Actor]:
    """All workers of a kind, by instance. Each agent and each engine has room for twice the mean."""
    if name == ROLLOUTS:
        concurrency = -(-2 * sizes.in_flight // sizes.rollout_workers)
        made: list[Actor] = [
            RolloutWorker(
                ScriptedAgent(client), concurrency=concurrency, timeout_seconds=10 * sizes.answer_seconds + 60
            )
            for _ in range(sizes.rollout_workers)
        ]
    else:
        make: Any = partial(lambda _model: SleepingEngine(sizes))
        made = [
            InferenceWorker(make, name=f"inference_worker-{index}", concurrency=sizes.in_flight)
            for index in range(sizes.inference_workers)
        ]
        for worker in made:
            worker.tick_seconds = TICK_SECONDS
    return {f"{name.removesuffix('s')}-{index}": worker for index, worker in enumerate(made)}


TICK_SECONDS = 5.0
"""Time between two measurements of an engine: the 0.2 s of a worker with a process of its own would be most of the work
of this one."""

if __name__ == "__main__":
    if sys.argv[2] in (ROLLOUTS, INFERENCE):
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_workers(RunFolder(Path(sys.argv[1])), sys.argv[2]))
    else:
        serve_actors({**CPU_ACTORS, "trainer": trainer}, sys.argv[1:])
