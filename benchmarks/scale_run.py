"""A run of `scale.py`: starts its processes, samples them, and follows the trainer."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
from history import OUTPUT_TAIL_CHARACTERS, busy_seconds, others_share
from orchestration import SERVER, begin, cpu_seconds, processes
from scale_process import INFERENCE, ROLLOUTS, SIZES, Sizes

from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.messages import (
    KINDS,
    BatchFormed,
    EpisodeScored,
    RunEpisode,
    StepCompleted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.supervision import processes_of
from areal_bus.base import Envelope
from areal_bus.errors import LogUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer
from areal_bus.subjects import work_consumer

RUN = "scale"
FIRST_STEP = 5
"""Batch with which the measurement begins: half as many episodes have ended as are in flight."""
SAMPLES_A_STEP = 8
READ_AT_END = 20_000
"""Events at the end of the log from which delays are taken."""
TIMEOUT_SECONDS = 600.0
LEASE_SECONDS = 60.0
CONTROL, TRAINER = "control", "trainer"


@dataclass
class Sample:
    """The processes at one moment."""

    at: float
    in_flight: int
    """Episodes that a rollout worker has taken."""
    queued: int
    """Episodes that wait for one."""
    events: int
    """Last sequence of the log."""
    log_bytes: int
    memory: dict[str, int]
    cpu: dict[str, float]
    busy: float


@dataclass
class Waits:
    """The seconds of one step of the trainer."""

    seconds: float
    """From the weights before it to its own."""
    for_groups: float
    """Until the last trajectory of its batch was in the log."""
    for_control: float
    """From then, or from the weights before it, to the batch."""
    around_step: float
    """Reading the batch, and publishing: the rest but the step itself."""


@dataclass
class Trainer:
    """The trainer's steps as the log has them."""

    ready: dict[int, Envelope] = field(default_factory=dict)
    """Publication of each version of the weights."""
    batches: dict[int, tuple[Envelope, BatchFormed]] = field(default_factory=dict)
    exported: dict[int, float] = field(default_factory=dict)
    """Time of the last trajectory of each batch."""

    def waits(self, step: int, step_seconds: float) -> Waits:
        """The seconds of step `step`, counted from 0."""
        began, formed, ended = self.ready[step].time, self.batches[step][0].time, self.ready[step + 1].time
        complete = min(max(self.exported[step], began), formed)
        rest = ended - formed - step_seconds
        return Waits(
            seconds=ended - began, for_groups=complete - began, for_control=formed - complete, around_step=rest
        )


@dataclass
class Measured:
    """Samples of a run, the trainer's steps, and the last events of the log."""

    sizes: Sizes
    samples: list[Sample]
    trainer: Trainer
    tail: list[Envelope]
    began: float
    """Start of the measurement: the batch `FIRST_STEP` was formed."""
    max_waiting: int
    """Workers that may wait for episodes at once."""

    def window(self) -> tuple[Sample, Sample]:
        """First and last sample of the measurement."""
        inside = [sample for sample in self.samples if sample.at >= self.began]
        return inside[0], inside[-1]


def recipe(sizes: Sizes, folder: Path) -> Recipe:
    """The recipe of the run; only the staleness bound limits it."""
    groups = (sizes.max_staleness + 1) * sizes.batch_size
    tables: dict[str, Any] = {
        "run": RUN,
        "steps": sizes.steps + sizes.max_staleness + 1,  # no grant is withheld before the measurement ends
        "model": "embedded",
        "folder": str(folder),
        "task": {
            "dataset": "arithmetic",
            "agent": "none",
            "reward": "gsm8k",
            "retries": 0,
            "timeout_seconds": TIMEOUT_SECONDS,
        },
        "algorithm": {"name": "grpo", "group_size": sizes.group_size},
        "staleness_gate": {"max_staleness": sizes.max_staleness, "max_concurrent": groups},
        "trainer": {"batch_size": sizes.batch_size},
        "generation": {"max_model_len": 2 * sizes.tokens + 1024},
        "sampling": {"max_tokens": sizes.tokens},
        "evaluation": {"tasks": 0},
        "bus": {"lease_seconds": LEASE_SECONDS},
        "actors": {
            "session_manager": {
                "process": "gateway",
                "count": sizes.gateways,
                "concurrency": groups * sizes.group_size,
            },
            "inference_worker": {"process": "inference_worker", "count": 0},
            "rollout_worker": {"process": "rollout_worker", "count": 0},
            "reward_worker": {"process": "reward_worker", "count": 0},
        },
    }
    return msgspec.convert(tables, Recipe)


@asynccontextmanager
async def system(
    plan: Recipe, folder: RunFolder, sizes: Sizes
) -> AsyncIterator[tuple[NatsBus, dict[str, psutil.Process]]]:
    """Start every process of the run."""
    folder.create(plan)
    folder.model.mkdir()
    write_tokenizer(train_tokenizer(), folder.model)
    (folder.path / SIZES).write_bytes(msgspec.msgpack.encode(sizes))
    server = await EmbeddedServer.start(folder.nats)
    try:
        bus = await NatsBus.connect(
            server.url, plan.run, name="benchmark", token=server.token, kinds=KINDS, blobs=folder.blobs
        )
        folder.announce(ServerAddress(url=server.url, token=server.token, run=plan.run, pid=os.getpid()))
        names = [CONTROL, *processes_of(plan.actors.session_manager), TRAINER, ROLLOUTS, INFERENCE]
        with processes(folder, names, "scale_process.py") as started:
            yield bus, {SERVER: psutil.Process(server.pid), **started}
        await bus.close()
    finally:
        await server.stop()


async def measure(sizes: Sizes, longest_seconds: float) -> Measured:
    """Run it to its last step.

    Raises:
        TimeoutError: it took longer than this.
    """
    with tempfile.TemporaryDirectory() as temporary:
        plan = recipe(sizes, Path(temporary))
        async with (
            system(plan, RunFolder(Path(temporary) / RUN), sizes) as (bus, running),
            asyncio.timeout(longest_seconds),
        ):
            await begin(bus, plan, Path(temporary))
            samples: list[Sample] = []
            sampling = asyncio.create_task(
                _sample(bus, running, samples, min(sizes.step_seconds / SAMPLES_A_STEP, 1.0))
            )
            following = asyncio.create_task(_follow(bus, sizes.steps))
            await asyncio.wait({sampling, following}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                raise SystemExit(
                    f"ended before the run: {sampling.exception()}\n{_outputs(Path(temporary) / RUN / 'logs')}"
                )
            sampling.cancel()
            trainer = following.result()
            end = await bus.streams.last_sequence()
            tail = [envelope async for envelope in _tail(bus, end)]
            consumer = (
                await bus.streams.api(f"CONSUMER.INFO.{bus.streams.queue}.{work_consumer(RunEpisode.subject)}", {})
            )["config"]
            began = trainer.batches[FIRST_STEP][0].time
            return Measured(sizes, samples, trainer, tail, began=began, max_waiting=consumer["max_waiting"])


def _outputs(logs: Path) -> str:
    return "".join(
        f"{path.name}:\n{path.read_text(errors='replace')[-OUTPUT_TAIL_CHARACTERS:]}\n"
        for path in sorted(logs.glob("*.out"))
    )


async def _follow(bus: NatsBus, steps: int) -> Trainer:
    trainer = Trainer()
    async with bus.events(BatchFormed, WeightsPublished, StepCompleted, consumer="benchmark", history="all") as inbox:
        async for delivery in inbox:
            message, envelope = delivery.message, delivery.envelope
            if isinstance(message, BatchFormed):
                trainer.batches[message.step] = envelope, message
                last = max(ref.sequence for group in message.groups for ref in group)
                trainer.exported[message.step] = (await bus.read([last]))[0].time
            elif isinstance(message, WeightsPublished):
                trainer.ready[message.weight_version] = envelope
                if message.weight_version == steps:
                    break
    return trainer


async def _tail(bus: NatsBus, end: int) -> AsyncIterator[Envelope]:
    """The last events up to `end`."""
    async for envelope in bus.log(after=max(end - READ_AT_END, 0)):
        yield envelope
        if envelope.sequence >= end:
            return


async def _sample(bus: NatsBus, running: dict[str, psutil.Process], samples: list[Sample], every: float) -> None:
    while True:
        with suppress(LogUnavailable):
            log = (await bus.streams.api(f"STREAM.INFO.{bus.streams.log}", {}))["state"]
            work = await bus.streams.api(f"CONSUMER.INFO.{bus.streams.queue}.{work_consumer(RunEpisode.subject)}", {})
            if ended := [name for name, process in running.items() if process.status() == psutil.STATUS_ZOMBIE]:
                raise ProcessLookupError(", ".join(ended))
            memory = {name: process.memory_info().rss for name, process in running.items()}
            samples.append(
                Sample(
                    at=time.time(),
                    in_flight=work["num_ack_pending"],
                    queued=work["num_pending"],
                    events=log["last_seq"],
                    log_bytes=log["bytes"],
                    memory=memory,
                    cpu=cpu_seconds(running),
                    busy=busy_seconds(),
                )
            )
        await asyncio.sleep(every)


def memory_per_episode(measured: Measured) -> dict[str, float]:
    """KiB by process, from a tenth of the episodes in flight to all of them.

    What a process has without any is left out.
    """
    full = max(measured.samples, key=lambda sample: sample.in_flight)
    first = next(sample for sample in measured.samples if sample.in_flight >= full.in_flight / 10)
    more = max(full.in_flight - first.in_flight, 1)
    return {name: round((full.memory[name] - first.memory[name]) / 1024 / more, 2) for name in full.memory}


def delays(tail: Sequence[Envelope]) -> dict[str, dict[str, float]]:
    """Milliseconds from an event to the event that answers it, by pair.

    What an actor's queue and its work take together.
    """
    at = {envelope.id: envelope for envelope in tail}
    found: dict[str, list[float]] = {}
    for envelope in tail:
        if envelope.subject in SHOWN and (cause := at.get(envelope.cause)) is not None:
            found.setdefault(f"{cause.subject} to {envelope.subject}", []).append(1000 * (envelope.time - cause.time))
    return {
        pair: {"p50": round(statistics.median(values), 1), "p99": round(sorted(values)[int(0.99 * len(values))], 1)}
        for pair, values in sorted(found.items())
        if len(values) > 1
    }


def event_bytes(tail: Sequence[Envelope]) -> list[int]:
    """Mean bytes of the events of an episode as they are in the log, by kind."""
    found: dict[str, list[int]] = {}
    for envelope in tail:
        found.setdefault(envelope.subject, []).append(len(msgspec.msgpack.encode(envelope)))
    ended = len(found[TrajectoryExported.subject])
    return [round(statistics.mean(sizes)) for sizes in found.values() if len(sizes) > ended / 2]


SHOWN = {kind.subject for kind in (TrajectoryExported, BatchFormed, EpisodeScored, WeightsPublished)} | {
    "capacity.granted"
}


def figures(measured: Measured) -> dict[str, Any]:
    """The figures of the table and of the model."""
    first, last = measured.window()
    sizes, seconds = measured.sizes, last.at - first.at
    steps = range(FIRST_STEP + 1, sizes.steps)
    waits = [measured.trainer.waits(step, sizes.step_seconds) for step in steps]
    whole = sum(wait.seconds for wait in waits)
    inside = [sample for sample in measured.samples if sample.at >= measured.began]
    episodes = len(steps) * sizes.batch_size * sizes.group_size / whole * seconds
    cpu = {name: last.cpu[name] - first.cpu[name] for name in last.cpu}
    events = len(measured.tail) / sum(envelope.subject == TrajectoryExported.subject for envelope in measured.tail)
    return {
        **msgspec.to_builtins(sizes),
        "seconds": round(seconds, 1),
        "in_flight_mean": round(statistics.mean(sample.in_flight for sample in inside)),
        "in_flight_most": max(sample.in_flight for sample in measured.samples),
        "queued_most": max(sample.queued for sample in inside),
        "episodes_per_second": round(episodes / seconds, 1),
        "events_per_second": round((last.events - first.events) / seconds, 1),
        "events_per_episode": round(events, 2),
        "log_bytes_per_episode": round(events * (last.log_bytes - first.log_bytes) / (last.events - first.events)),
        "starved": round(sum(wait.for_groups + wait.for_control for wait in waits) / whole, 4),
        "starved_for_groups": round(sum(wait.for_groups for wait in waits) / whole, 4),
        "starved_for_control": round(sum(wait.for_control for wait in waits) / whole, 4),
        "around_steps": round(sum(wait.around_step for wait in waits) / whole, 4),
        "others": round(others_share(last.busy - first.busy, sum(cpu.values()), seconds), 3),
        "cpu_share": {name: round(value / seconds, 3) for name, value in cpu.items()},
        "cpu_ms_per_episode": {name: round(1000 * value / episodes, 3) for name, value in cpu.items()},
        "kib_per_episode": memory_per_episode(measured),
        "mib_at_most": {
            name: round(max(sample.memory[name] for sample in measured.samples) / 2**20) for name in last.memory
        },
        "delays_ms": delays(measured.tail),
        "event_bytes": event_bytes(measured.tail),
        "max_waiting": measured.max_waiting,
    }
