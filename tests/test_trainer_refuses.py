"""The trainer leaves out what cannot be trained, counts the step in any case, and takes the same steps again."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from support.samples import interaction, trajectory
from test_trainer_examples import CountingEngine, NumberedLessons, drawn, of

from areal_actors.core.errors import RankFailed, UntrainableBatch
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    CheckpointCommitted,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrainingHalted,
    TrajectoryExported,
    TrajectoryRef,
    WeightsPublished,
)
from areal_actors.sequences.sequence_check import SequenceLimits
from areal_actors.training.trainer import Trainer
from areal_bus.base import Envelope, Stamp

STARTED = RunStarted(recipe={}, profile="", reason="", folder="runs/refusing")
BEFORE = 1000
RESUMED = RunResumed(recipe={}, reason="", folder="runs/refusing")


class Engine(CountingEngine):
    """Remembers the rows of each step; those with a token `U` it cannot train."""

    limits = SequenceLimits(vocabulary=128, context=50)

    def step(self, rows):
        if any(ord("U") in row.token_ids.tolist() for row in rows):
            raise UntrainableBatch(f"the loss of step {self.weight_version} is nan")
        return super().step(rows)

    def load(self, folder):
        self.weight_version = int(folder)


def exported(number, text, *, poison=False):
    turn = interaction(f"{number}.0-1", text, 0)
    if poison:
        bad = np.full(len(text), math.nan, "<f4").tobytes()
        turn = msgspec.structs.replace(turn, completion=msgspec.structs.replace(turn.completion, logprobs=bad))
    return TrajectoryExported(trajectory=trajectory(f"{number}.0", turn))


def log_of(*events):
    """The log as `turn.read` gives it, after position `BEFORE`."""
    stamps = [Stamp(id=f"{place}", sender="session_manager-0", time=0.0) for place, _ in enumerate(events, 1)]
    return {
        BEFORE + place: Envelope.seal(event, stamp, "r")
        for (place, event), stamp in zip(enumerate(events, 1), stamps, strict=True)
    }


def formed(step, *numbers):
    members = tuple((TrajectoryRef(episode=f"{number}.0", sequence=BEFORE + number),) for number in numbers)
    counts = {"trained_trajectories": 1, "trained_tokens": 1, "dropped_trajectories": 0, "dropped_tokens": 0}
    return BatchFormed(step=step, groups=members, oldest_version=0, **counts)


GOOD, BAD, UNFIT = "good", "bad", "Unfit"


def answers(*kinds):
    """Trajectories 1, 2, 3 … of these kinds, as the log's positions."""
    log = log_of(*(exported(number, kind, poison=kind == BAD) for number, kind in enumerate(kinds, 1)))
    return {int: log.__getitem__}


def trainer_of(engine=None, **options):
    engine = engine or Engine()
    return engine, Trainer(lambda _: engine, lambda version: f"v{version}", lambda: 0.0, **options)


def kinds_of(emitted):
    kept = (BatchRefused, StepCompleted, WeightsPublished, TrainingHalted)
    return [type(one).__name__ for one in emitted if isinstance(one, kept)]


async def test_bad_rows_are_named_and_the_others_trained(send):
    engine, trainer = trainer_of()
    emitted = await send(trainer, STARTED, formed(0, 1, 2, 3), answers=answers(GOOD, BAD, GOOD))
    assert kinds_of(emitted) == ["WeightsPublished", "BatchRefused", "StepCompleted", "WeightsPublished"]
    (refused,) = of(emitted, BatchRefused)
    assert (refused.step, refused.trained_sequences, refused.cause) == (0, 2, "")
    assert [(row.episode, row.sequence, row.token) for row in refused.sequences] == [("2.0", 1, 1)]
    assert refused.sequences[0].cause.startswith("log-probability at token 1: nan")
    (step,) = of(emitted, StepCompleted)
    assert (step.step, step.metrics["refused_sequences"], step.metrics["mean_tokens"]) == (1, 1.0, 4.0)
    assert [len(rows) for rows in engine.trained] == [2]


@pytest.mark.parametrize(
    ("kind", "cause"), [(BAD, "no sequence of the batch can be trained"), (UNFIT, "the loss of step 1 is nan")]
)
async def test_a_step_that_can_change_nothing_is_counted_and_published(send, kind, cause):
    engine, trainer = trainer_of()
    batches = (formed(0, 1), formed(1, 2), formed(2, 3))
    emitted = await send(trainer, STARTED, *batches, answers=answers(GOOD, kind, GOOD))
    assert [event.step for event in of(emitted, StepCompleted)] == [1, 2, 3]
    assert [event.weight_version for event in of(emitted, WeightsPublished)] == [0, 1, 2, 3]
    (refused,) = of(emitted, BatchRefused)
    assert (refused.step, refused.trained_sequences, refused.cause) == (1, 0, cause)
    assert of(emitted, StepCompleted)[1].metrics == {"skipped": 1.0, "refused_sequences": float(kind == BAD)}
    assert [len(rows) for rows in engine.trained] == [1, 0, 1]
    assert trainer.weight_version == engine.weight_version == 3


async def test_a_trainer_that_is_started_again_takes_the_same_steps(send):
    kinds = (GOOD, BAD, UNFIT, GOOD, GOOD)
    first, trainer = trainer_of()
    batches = tuple(formed(step, step + 1) for step in range(5))
    await send(trainer, STARTED, *batches, answers=answers(*kinds))
    again, other = trainer_of()
    await send(other, STARTED, *batches[:4], answers=answers(*kinds), replayed=True)
    emitted = await send(other, RESUMED, batches[4], answers=answers(*kinds))
    assert again.trained == first.trained == [[63], [], [], [63], [63]]
    assert [event.weight_version for event in of(emitted, WeightsPublished)] == [4, 5]
    assert not of(emitted, BatchRefused), "they were named in the life before"


async def test_after_a_checkpoint_only_the_steps_since_then_are_taken_again(send):
    kinds = (GOOD, BAD, UNFIT, GOOD)
    engine, trainer = trainer_of()
    batches = tuple(formed(step, step + 1) for step in range(4))
    await send(
        trainer,
        STARTED,
        *batches,
        CheckpointCommitted(folder="2", step=2, cursor=0),
        answers=answers(*kinds),
        replayed=True,
    )
    await send(trainer, RESUMED, answers=answers(*kinds))
    assert (engine.trained, engine.weight_version) == ([[], [63]], 4)


async def test_too_many_skipped_steps_in_a_row_end_the_run_by_name(send):
    _, trainer = trainer_of(max_skipped_steps=3)
    kinds = (BAD, BAD, GOOD, BAD, UNFIT, BAD, GOOD)
    emitted = await send(trainer, STARTED, *(formed(step, step + 1) for step in range(7)), answers=answers(*kinds))
    (halted,) = of(emitted, TrainingHalted)
    assert emitted.index(halted) > emitted.index(next(event for event in of(emitted, StepCompleted) if event.step == 6))
    assert halted.reason.startswith(
        "3 steps in a row changed no weight, the last because of this: log-probability at token 1: nan"
    )
    assert "trainer.max_skipped_steps" in halted.reason
    assert len(of(emitted, StepCompleted)) == 7


async def test_updates_that_were_left_out_of_a_step_are_named(send):
    class HalfAStep(Engine):
        def step(self, rows):
            return {**super().step(rows), "skipped_updates": 1.0}

    _, trainer = trainer_of(HalfAStep(), max_skipped_steps=1)
    emitted = await send(trainer, STARTED, formed(0, 1), answers=answers(GOOD))
    (refused,) = of(emitted, BatchRefused)
    assert (refused.sequences, refused.trained_sequences) == ((), 1)
    assert "1 updates of the step were skipped" in refused.cause
    assert not of(emitted, TrainingHalted)


async def test_a_step_on_examples_that_can_change_nothing_is_counted_too(send):
    class Never(Engine):
        def step(self, rows):
            if rows:
                raise UntrainableBatch("the loss is nan")
            return super().step(rows)

    _, trainer = trainer_of(Never(), examples=NumberedLessons(), max_skipped_steps=2)
    emitted = await send(trainer, STARTED, drawn(0, 4), drawn(1, 3))
    assert [event.step for event in of(emitted, StepCompleted)] == [1, 2]
    assert [event.cause for event in of(emitted, BatchRefused)] == ["the loss is nan"] * 2
    assert len(of(emitted, TrainingHalted)) == 1


class FailingRanks(Engine):
    """Fails on a batch with `U` as a group of ranks does: it starts again at version 0."""

    def step(self, rows):
        if any(ord("U") in row.token_ids.tolist() for row in rows):
            self.weight_version, self.trained = 0, []
            raise RankFailed("rank 1 of 2 failed in step 1: RuntimeError: out of memory")
        return super().step(rows)


async def test_a_batch_on_which_ranks_fail_twice_is_refused_by_name_and_replayed_as_refused(send):
    kinds = (GOOD, UNFIT, GOOD)
    engine, trainer = trainer_of(FailingRanks())
    batches = tuple(formed(step, step + 1) for step in range(3))
    emitted = await send(trainer, STARTED, *batches, answers=answers(*kinds))
    assert [event.step for event in of(emitted, StepCompleted)] == [1, 2, 3]
    (refused,) = of(emitted, BatchRefused)
    assert (refused.step, refused.trained_sequences) == (1, 0)
    assert "rank 1 of 2 failed in step 1: RuntimeError: out of memory" in refused.cause
    assert [len(rows) for rows in engine.trained] == [
        1,
        0,
        1,
    ], "the steps since the ranks were started for the third time"
    completed = of(emitted, StepCompleted)
    other, second = trainer_of(Engine())  # on other ranks nothing fails: what the log refused stays refused
    log = [STARTED, batches[0], completed[0], batches[1], completed[1]]
    await send(second, *log, answers=answers(*kinds), replayed=True)
    await send(second, RESUMED, batches[2], answers=answers(*kinds))
    assert [len(rows) for rows in other.trained] == [1, 0, 1]
