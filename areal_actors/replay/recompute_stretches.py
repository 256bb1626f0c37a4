"""Repeats stretches of the steps of a log, each from the kept state before it: a checkpoint, or the initial model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.audit.recomputation import RecomputeProgress
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    BatchFormed,
    CheckpointCommitted,
    ExamplesDrawn,
    RunResumed,
    RunStarted,
    TrajectoryExported,
)
from areal_actors.replay.repeated_trainer import make_trainer, newest_folder, progress_of, step_settings
from areal_actors.runtime.log_context import LogContext
from areal_actors.training.checkpoint_store import CHECKPOINTS, CheckpointStore
from areal_actors.training.trainer import Trainer, TrainerState
from areal_actors.training.trainer_history import HistoryState
from areal_bus.base import Envelope
from areal_bus.recorded import read_log


class RecordedSteps(msgspec.Struct):
    """Inputs of the chosen steps of a log."""

    batches: dict[int, Envelope] = {}
    """By the version that the step begins with."""
    recipes: dict[int, dict[str, Any]] = {}
    """Recipe in effect at each batch."""
    saved: dict[int, CheckpointCommitted] = {}
    trajectories: dict[int, Envelope] = {}
    """By position in the log."""

    @classmethod
    def read(cls, log: Path, wanted: set[int]) -> RecordedSteps:
        """Read the steps that begin with these versions."""
        steps, recipe, needed = cls(), {}, set()
        for envelope in read_log(log):
            if envelope.subject == RunStarted.subject:
                recipe = envelope.open(RunStarted).recipe
            elif envelope.subject == RunResumed.subject:
                recipe = envelope.open(RunResumed).recipe
            elif envelope.subject == CheckpointCommitted.subject:
                saved = envelope.open(CheckpointCommitted)
                steps.saved[saved.step] = saved
            elif envelope.subject in {BatchFormed.subject, ExamplesDrawn.subject}:
                batch = _step_input(envelope)
                if batch.step in wanted:
                    steps.batches[batch.step], steps.recipes[batch.step] = envelope, recipe
                    groups = batch.groups if isinstance(batch, BatchFormed) else ()
                    needed |= {member.sequence for group in groups for member in group}
        for envelope in read_log(log):
            if envelope.subject == TrajectoryExported.subject and envelope.sequence in needed:
                steps.trajectories[envelope.sequence] = envelope
        return steps


def _step_input(envelope: Envelope) -> BatchFormed | ExamplesDrawn:
    if envelope.subject == BatchFormed.subject:
        return envelope.open(BatchFormed)
    return envelope.open(ExamplesDrawn)


async def repeat_stretches(
    log: Path, folder: RunFolder, stretches: Mapping[int, int], scratch: Path
) -> AsyncGenerator[RecomputeProgress, None]:
    """Yields what a trainer computes on each stretch: the versions after its steps, and their metrics.

    Checkpoints are read through links, so that one that turns out to be damaged stays where it is.

    Raises:
        SetupError: a step is not in the log.
    """
    wanted = {step for start, last in stretches.items() for step in range(start, last)}
    steps = RecordedSteps.read(log, wanted)
    (scratch / CHECKPOINTS).mkdir()

    def weights(version: int) -> str:
        return newest_folder(scratch, version)

    for start, last in sorted(stretches.items()):
        versions = range(start, last)
        if missing := [version + 1 for version in versions if version not in steps.batches]:
            raise SetupError(f"the log has no batch of step {missing[0]}")
        trainer, settings = None, ()
        for version in versions:
            recipe = steps.recipes[version]
            if trainer is None or step_settings(recipe) != settings:  # also at a fork, or a resume with other settings
                state = _state_at(start, steps, folder, scratch) if trainer is None else _save(trainer)
                trainer, settings = (
                    make_trainer(recipe, folder, CheckpointStore(scratch), weights),
                    step_settings(recipe),
                )
                trainer.restore(state)
            envelope = steps.batches[version]
            context = LogContext(envelope, steps.trajectories)
            async for emitted in trainer.receive(_step_input(envelope), context):
                if (result := progress_of(emitted)) is not None:
                    yield result


def _save(trainer: Trainer) -> TrainerState:
    """Save the state of a trainer, for another that continues from it."""
    step = trainer.weight_version
    place = f"{CHECKPOINTS}/between-{step}"
    assert trainer.engine is not None
    trainer.checkpoints.write(trainer.engine.save, place)
    return _begin_at(step, CheckpointCommitted(folder=place, step=step, cursor=0))


def _state_at(start: int, steps: RecordedSteps, folder: RunFolder, scratch: Path) -> TrainerState:
    if not start:
        return _begin_at(0)
    if start not in steps.saved:
        raise SetupError(f"the log has no checkpoint of step {start}")
    name = f"step-{start}"
    (scratch / CHECKPOINTS / name).symlink_to((folder.checkpoints / name).absolute())
    return _begin_at(start, msgspec.structs.replace(steps.saved[start], folder=f"{CHECKPOINTS}/{name}"))


def _begin_at(step: int, *saved: CheckpointCommitted) -> TrainerState:
    past = HistoryState(
        batches={}, checkpoints=saved, weights={}, sequences={}, arithmetic={}, other_settings=()
    )  # no checksums of the log: what differs is reported, not refused
    return TrainerState(weight_version=step, cursor=0, groups_trained=0, past=past)
