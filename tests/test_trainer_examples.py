"""The trainer where there are no episodes: each step's examples once, in order, and held-out ones when they are due."""

from __future__ import annotations

import numpy as np

from areal_actors.core.values import TrainingSequence, WeightsLocation
from areal_actors.messages import (
    CheckpointStaged,
    ExamplesDrawn,
    LossEvaluated,
    RunStarted,
    SaveCheckpoint,
    StepCompleted,
    WeightsPublished,
)
from areal_actors.training.trainer import Trainer

STARTED = RunStarted(recipe={}, profile="", reason="", folder="runs/taught")


class CountingEngine:
    """A training engine whose loss is how many of ten steps are left."""

    def __init__(self):
        self.weight_version = 0
        self.trained = []
        self.published = []

    def step(self, rows):
        self.weight_version += 1
        self.trained.append([int(row.token_ids[0]) for row in rows])
        return {"loss": 10.0 - self.weight_version, "reward_mean": 0.0}

    def evaluate(self, rows):
        return {"loss": 10.0 - self.weight_version + len(rows) / 100, "reward_mean": 0.0}

    def publish(self, folder):
        self.published.append(folder)
        return WeightsLocation(folder=folder, checksum=self.checksum(), model="the model")

    def checksum(self):
        return str(self.trained)

    def save(self, folder):
        pass


class NumberedLessons:
    """An example is a row of its number; every second version is measured on three rows."""

    model_folder = ""

    def begin(self, model_folder):
        self.model_folder = model_folder

    def sequences(self, numbers):
        zeros = np.zeros(1)
        return [
            TrainingSequence(
                np.array([number]),
                zeros > 0,
                zeros.astype(np.float32),
                zeros.astype(np.int32) - 1,
                group,
                1.0,
                truncated=False,
            )
            for group, number in enumerate(numbers)
        ]

    def held_out_sequences(self, weight_version):
        return self.sequences([7, 8, 9]) if weight_version % 2 == 0 else []


def taught():
    engine, lessons = CountingEngine(), NumberedLessons()
    return engine, lessons, Trainer(lambda _: engine, lambda version: f"v{version}", lambda: 0.0, examples=lessons)


def drawn(step, *numbers):
    return ExamplesDrawn(step=step, numbers=numbers, epoch=0)


def of(emitted, kind):
    return [message for message in emitted if isinstance(message, kind)]


async def test_the_first_weights_are_published_and_measured_and_later_ones_only_measured(send):
    engine, lessons, trainer = taught()
    emitted = await send(trainer, STARTED, drawn(0, 4, 2), drawn(1, 3, 1))
    assert lessons.model_folder == "the model"
    assert engine.trained == [[4, 2], [3, 1]]
    assert [type(message) for message in emitted[:2]] == [WeightsPublished, LossEvaluated]
    assert engine.published == ["v0"]
    assert [event.step for event in of(emitted, StepCompleted)] == [1, 2]
    assert of(emitted, StepCompleted)[0].metrics == {"loss": 9.0, "examples": 2.0}
    assert [(event.weight_version, event.examples, event.metrics) for event in of(emitted, LossEvaluated)] == [
        (0, 3, {"loss": 10.03}),
        (2, 3, {"loss": 8.03}),
    ]


async def test_a_step_drawn_twice_is_trained_once(send):
    engine, _, trainer = taught()
    emitted = await send(trainer, STARTED, drawn(0, 4, 2), drawn(0, 4, 2), drawn(1, 3, 1), drawn(0, 4, 2))
    assert engine.trained == [[4, 2], [3, 1]]
    assert len(of(emitted, StepCompleted)) == 2


async def test_a_checkpoint_records_the_last_draw_of_its_weights(send):
    _, _, trainer = taught()
    emitted = await send(trainer, STARTED, drawn(0, 4, 2), SaveCheckpoint(folder="somewhere", reason="schedule"))
    (written,) = of(emitted, CheckpointStaged)
    assert (written.step, written.cursor) == (1, 2)


async def test_the_rows_of_a_step_have_a_checksum_of_their_ids(send):
    first, again, other = [
        of(await send(taught()[2], STARTED, drawn(0, *numbers)), StepCompleted)[0].sequences_checksum
        for numbers in ((4, 2), (4, 2), (2, 4))
    ]
    assert first == again != other
