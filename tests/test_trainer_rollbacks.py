"""Ranks of the trainer die: fresh ones continue from the checkpoint, which is visible only in the log."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from support.live_run import LiveRun
from test_trainer_examples import CountingEngine, NumberedLessons, drawn, of

from areal_actors.core.errors import RanksLost
from areal_actors.messages import (
    CheckpointCommitted,
    CheckpointStaged,
    ExamplesDrawn,
    LossEvaluated,
    RunFinished,
    RunResumed,
    RunStarted,
    SaveCheckpoint,
    StepCompleted,
    TrainerProgress,
    TrainerRolledBack,
    WeightsPublished,
)
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.trainer import Trainer
from areal_actors.training.trainer_recovery import MAX_ROLLBACKS

STARTED = RunStarted(recipe={}, profile="", reason="", folder="runs/taught")
RESUMED = RunResumed(recipe={}, reason="", folder="runs/taught")
SAVE = SaveCheckpoint(folder="somewhere", reason="schedule")
SAVED = CheckpointCommitted(folder="somewhere", step=2, cursor=0)


class FailingEngine(CountingEngine):
    """Loses its state and fails at the first of these calls, as a rank that dies."""

    def __init__(self, *failures, times=1):
        super().__init__()
        self.left = dict.fromkeys(failures, times)
        self.saved = {}

    def _may_fail(self, what):
        if self.left.get((what, self.weight_version), 0):
            self.left[what, self.weight_version] -= 1
            self.weight_version, self.trained = 0, []
            raise RanksLost("rank 1 of 2 was ended by signal 9")

    def step(self, rows):
        self._may_fail("step")
        return super().step(rows)

    def evaluate(self, rows):
        self._may_fail("evaluate")
        return super().evaluate(rows)

    def save(self, folder):
        self._may_fail("save")
        self.saved[folder] = self.weight_version, list(self.trained)

    def load(self, folder):
        self._may_fail("load")
        self.weight_version, trained = self.saved[folder]
        self.trained = list(trained)


class NoFolders(CheckpointStore):
    """Checkpoints of an engine that keeps them in memory."""

    def path(self, folder):
        return Path(folder)


def trainer_of(engine):
    lessons, folders = NumberedLessons(), NoFolders(Path())
    return Trainer(lambda _: engine, lambda version: f"v{version}", lambda: 0.0, examples=lessons, checkpoints=folders)


async def train_steps(send, engine, *events):
    return await send(trainer_of(engine), STARTED, *events)


STEPS = (drawn(0, 4), drawn(1, 3), SAVE, SAVED, drawn(2, 2), drawn(3, 1), drawn(4, 0))


@pytest.mark.parametrize(
    "failure", [("step", 0), ("step", 1), ("step", 4), ("evaluate", 2), ("evaluate", 4), ("save", 2)]
)
async def test_the_steps_since_the_checkpoint_are_taken_again_from_the_same_rows(send, failure):
    undisturbed, engine = CountingEngine(), FailingEngine(failure)
    expected, emitted = await train_steps(send, undisturbed, *STEPS), await train_steps(send, engine, *STEPS)
    assert engine.trained == undisturbed.trained == [[4], [3], [2], [1], [0]]
    for kind in (WeightsPublished, StepCompleted, LossEvaluated):
        assert of(emitted, kind) == of(expected, kind)
    assert [written.step for written in of(emitted, CheckpointStaged)] == [2]
    (rolled_back,) = of(emitted, TrainerRolledBack)
    assert (rolled_back.step, rolled_back.weight_version) == (failure[1], 0 if failure[1] <= 2 else 2)
    assert rolled_back.reason == "rank 1 of 2 was ended by signal 9"


async def test_ranks_that_die_again_and_again_end_the_trainer_with_their_words(send):
    with pytest.raises(RanksLost, match="rank 1 of 2"):
        await train_steps(send, FailingEngine(("step", 0), times=MAX_ROLLBACKS + 1), drawn(0, 4))
    emitted = await train_steps(send, FailingEngine(("step", 0), times=MAX_ROLLBACKS), drawn(0, 4))
    assert len(of(emitted, TrainerRolledBack)) == MAX_ROLLBACKS


@pytest.mark.parametrize("cut", range(len(STEPS)))
async def test_a_trainer_that_is_started_again_takes_the_steps_since_the_checkpoint_and_continues(send, cut):
    undisturbed, engine = CountingEngine(), FailingEngine()
    expected = await train_steps(send, undisturbed, *STEPS)
    before = await train_steps(send, engine, *STEPS[:cut])
    fresh = FailingEngine()
    fresh.saved = engine.saved
    trainer = trainer_of(fresh)
    await send(trainer, STARTED, *(event for event in STEPS[:cut] if event != SAVE), replayed=True)
    assert fresh.trained == [], "what was done before is not done again until it is needed"
    after = await send(trainer, RESUMED, *STEPS[cut:])
    assert fresh.trained == undisturbed.trained
    for kind in (StepCompleted, LossEvaluated):
        assert of(before, kind) + of(after, kind) == of(expected, kind)
    assert [written.step for written in of([*before, *after], CheckpointStaged)] == [2]
    again = len(of(STEPS[:cut], ExamplesDrawn)) - (SAVED.step if SAVED in STEPS[:cut] else 0)
    phases = [(phase.done, phase.total) for phase in of(after, TrainerProgress) if phase.phase == "taking steps again"]
    assert phases == [(done, again) for done in range(again)]


@pytest.mark.long
@pytest.mark.slow
async def test_a_run_whose_rank_is_killed_takes_every_step_once_more_from_the_checkpoint_and_ends(tmp_path):
    run = LiveRun(tmp_path, "steps=6", "trainer.ranks=2", "evaluation.tasks=0", "checkpoint.every_steps=2")
    try:
        async with run.listening(120):
            await run.until(StepCompleted, 3)
            os.kill(ranks_of(run)[-1], signal.SIGKILL)
            assert await run.ended() == 0, run.output()
        log = [event for _, event in await run.log()]
    finally:
        run.abort()
    (rolled_back,) = of(log, TrainerRolledBack)
    assert "signal 9" in rolled_back.reason
    assert rolled_back.weight_version in {
        0,
        *(event.step for event in of(log, CheckpointCommitted)),
    }, "the last one that it had received"
    assert [event.step for event in of(log, StepCompleted)] == [1, 2, 3, 4, 5, 6]
    assert [event.weight_version for event in of(log, WeightsPublished)] == [0, 1, 2, 3, 4, 5, 6]
    assert of(log, RunFinished) == [RunFinished(steps=6)]
    assert run.processes_left() == []


def ranks_of(run):
    """Process ids of the trainer's ranks."""
    family = psutil.Process(run.process.pid).children(recursive=True)
    return [process.pid for process in family if any("rank_process" in word for word in process.cmdline())]
