"""The trainer of a run over its recorded episodes under other settings: steps and weights, without inference."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.display.safe_console import SafeConsole
from areal_actors.messages import (
    BatchFormed,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.reader.audit_command import recomputation
from areal_actors.recipe.recipe import Recipe
from areal_actors.replay.recorded_batches import RecordedBatches
from areal_bus.base import Envelope, Stamp
from areal_bus.message import Event
from areal_bus.recorded import LogWriter

BATCHES_FROM = 1 << 40
"""Sequence of the first batch of another batcher, beyond those of any log."""
STEP_METRICS = (
    "loss",
    "grad_norm",
    "entropy",
    "approx_kl",
    "clip_frac",
    "effective_sample_size",
    "importance_weight_max",
)
"""Metrics of the steps that are compared."""
REPLACED = (BatchFormed.subject, TrajectoryDropped.subject)


class TrainedSteps(msgspec.Struct):
    """Steps of a trainer."""

    metrics: list[dict[str, float]]
    checksums: dict[int, str]
    """Checksum of each weight version."""
    repeated: bool = False
    """True if they were computed here, False if they are those of the log."""


async def train_again(
    log: Callable[[], AsyncGenerator[Envelope, None]], was: RecordedBatches, now: RecordedBatches, place: Path | None
) -> tuple[TrainedSteps, TrainedSteps]:
    """Returns the recorded steps, and those of a new trainer with the settings and batches of `now`.

    If this machine computes other bits than the one of the run, the recorded steps are computed here too, so that
    weights can be compared.

    Raises:
        SetupError: the trainer cannot repeat the steps; the message has its reason.
    """
    recorded = TrainedSteps([], {})
    async with aclosing(log()) as envelopes:
        async for envelope in envelopes:
            _note(recorded, envelope)
    trained = await _repeat_steps(log, now, place)
    first = min(recorded.checksums, default=0)
    if recorded.checksums.get(first) != trained.checksums.get(first):
        recorded = await _repeat_steps(log, was, place)
    return recorded, trained


async def _repeat_steps(
    log: Callable[[], AsyncGenerator[Envelope, None]], recorded: RecordedBatches, place: Path | None
) -> TrainedSteps:
    trained = TrainedSteps([], {}, repeated=True)
    async with recomputation(recorded.recipe.trainer.threads or 1) as recomputed:
        with tempfile.TemporaryDirectory(prefix="areal-what-if-") as scratch:
            path, steps = Path(scratch) / "log", len(recorded.batches)
            await _write_log(path, log, recorded)
            with SafeConsole(stderr=True).status("training on the recorded episodes") as shown:
                async for progress in recomputed(path, place or path, steps):
                    if progress.error:
                        raise SetupError(f"the trainer stopped: {progress.error}")
                    if progress.version >= 0:
                        trained.checksums[progress.version] = progress.checksum
                    if progress.step:
                        trained.metrics.append(progress.metrics)
                        shown.update(f"training on the recorded episodes: {progress.step} of {steps} steps")
    return trained


async def _write_log(path: Path, log: Callable[[], AsyncGenerator[Envelope, None]], recorded: RecordedBatches) -> None:
    with LogWriter(path, recorded.recipe.run) as writer:
        async with aclosing(log()) as envelopes:
            async for envelope in envelopes:
                for rewritten in _rewritten(envelope, recorded):
                    writer.write(rewritten)


def _note(recorded: TrainedSteps, envelope: Envelope) -> None:
    if envelope.subject == StepCompleted.subject:
        event = envelope.open(StepCompleted)
        if event.step > len(recorded.metrics):
            recorded.metrics.append(event.metrics)
    elif envelope.subject == WeightsPublished.subject:
        published = envelope.open(WeightsPublished)
        recorded.checksums.setdefault(published.weight_version, published.location.checksum)


def _rewritten(envelope: Envelope, recorded: RecordedBatches) -> Iterable[Envelope]:
    """An event of the log with the other settings, rewards and batches in it, and the batches that follow it."""
    if envelope.subject == RunStarted.subject:
        yield _seal(envelope, msgspec.structs.replace(envelope.open(RunStarted), recipe=_plain(recorded.recipe)))
    elif envelope.subject == RunResumed.subject:
        yield _seal(envelope, msgspec.structs.replace(envelope.open(RunResumed), recipe=_plain(recorded.recipe)))
    elif envelope.subject == TrajectoryExported.subject and envelope.sequence in recorded.trajectories:
        yield _seal(envelope, TrajectoryExported(trajectory=recorded.trajectories[envelope.sequence]))
    elif envelope.subject not in REPLACED:
        yield envelope
    for number, batch in enumerate(recorded.batches):
        if batch.after == envelope.sequence:
            yield msgspec.structs.replace(_seal(envelope, batch.event), sequence=BATCHES_FROM + number)


def _plain(recipe: Recipe) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(recipe)
    return plain


def _seal(envelope: Envelope, message: Event) -> Envelope:
    stamp = Stamp(id=envelope.id, sender=envelope.sender, time=envelope.time, cause=envelope.cause)
    return msgspec.structs.replace(Envelope.seal(message, stamp, envelope.run), sequence=envelope.sequence)
