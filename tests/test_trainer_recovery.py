"""A trainer that is started again verifies the checkpoint it goes back to, and every step that it takes again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from test_trainer_examples import CountingEngine, NumberedLessons, drawn, of

from areal_actors.core.errors import CheckpointError, SetupError, StepMismatch
from areal_actors.messages import (
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointStaged,
    RunResumed,
    RunStarted,
    SaveCheckpoint,
    StepCompleted,
    StepDiffered,
    TrainerProgress,
    WeightsPublished,
)
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.checkpointer import CheckpointConfig, Checkpointer
from areal_actors.training.trainer import Trainer
from areal_actors.training.trainer_history import TrainedHistory
from areal_actors.weights.manifest import MANIFEST

STARTED = RunStarted(recipe={}, profile="", reason="", folder="runs/a")
RESUMED = RunResumed(recipe={}, reason="", folder="runs/a")
OTHER_SETTINGS = msgspec.structs.replace(RESUMED, recipe={"trainer": {"microbatch_tokens": 1}})
STEPS = 5


class FileEngine(CountingEngine):
    """Its weights are the numbers of all examples that it was trained on, and lie in a file."""

    def __init__(self, drift=""):
        super().__init__()
        self.drift = drift
        self.loaded = []

    def checksum(self):
        return f"{self.trained}{self.drift}"

    def save(self, folder):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "trainer_state.pt").write_text(json.dumps([self.weight_version, self.trained]))
        (Path(folder) / "config.json").write_text("{}")

    def load(self, folder):
        self.loaded.append(Path(folder).name)
        try:
            self.weight_version, self.trained = json.loads((Path(folder) / "trainer_state.pt").read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder}: {error}") from error


class Story:
    """A run of five steps, saved after the second and the fourth, as its log has it."""

    def __init__(self, send, root):
        self.send, self.root = send, root
        self.log = []

    def trainer(self, engine, *, repeats=True):
        store, past = CheckpointStore(self.root), TrainedHistory(repeats=repeats)
        lessons = NumberedLessons()
        return Trainer(
            lambda _: engine,
            lambda version: f"v{version}",
            lambda: 0.0,
            examples=lessons,
            checkpoints=store,
            step_history=past,
        )

    async def happen(self, trainer, *messages):
        for message in messages:
            emitted = [one for one in await self.send(trainer, message) if not isinstance(one, TrainerProgress)]
            self.log += [message, *emitted] if not isinstance(message, SaveCheckpoint) else emitted

    async def run(self):
        trainer = self.trainer(FileEngine())
        self.keeper = Checkpointer(CheckpointConfig(every_steps=2), folder=self.root / "checkpoints", steps=9)
        await self.happen(trainer, STARTED)
        for step in range(STEPS):
            await self.happen(trainer, drawn(step, STEPS - step))
            for save in await self.send(self.keeper, of(self.log, StepCompleted)[-1]):
                await self.happen(trainer, save)
                self.log += await self.send(self.keeper, of(self.log, CheckpointStaged)[-1])
        return trainer

    async def again(self, engine, *, resumed=RESUMED, repeats=True):
        """Replay the log into a fresh trainer and continue; returns the emitted messages."""
        trainer = self.trainer(engine, repeats=repeats)
        await self.send(trainer, *(message for message in self.log if type(message) in trainer.handlers), replayed=True)
        return await self.send(trainer, resumed, drawn(STEPS, 0))


@pytest.fixture
async def story(send, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    story = Story(send, tmp_path)
    await story.run()
    assert [saved.step for saved in of(story.log, CheckpointCommitted)] == [2, 4]
    return story


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = {
    "a flipped byte": (lambda folder: flip(folder / "config.json"), "config.json has digest"),
    "a truncated file": (lambda folder: cut(folder / "trainer_state.pt"), "from manifest.json"),
    "a missing file": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "a missing manifest": (lambda folder: (folder / MANIFEST).unlink(), "manifest.json is missing"),
    "a flipped byte of the manifest": (lambda folder: flip(folder / MANIFEST), "as recorded when it was saved"),
    "a file too many": (lambda folder: (folder / "more.safetensors").write_text("x"), "is not in manifest.json"),
    "no folder": (shutil.rmtree, "does not exist"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_checkpoint_falls_back_to_the_one_before_it_and_to_the_same_weights(story, damage):
    ruin, words = DAMAGES[damage]
    ruin(story.root / "checkpoints" / "step-4")
    emitted = await story.again(engine := FileEngine())
    assert engine.loaded == ["step-2"]
    assert engine.trained == [[5], [4], [3], [2], [1], [0]]
    (damaged,) = of(emitted, CheckpointDamaged)
    assert (damaged.step, damaged.weight_version) == (4, 2)
    assert words in damaged.reason
    aside = "" if damage == "no folder" else "checkpoints/set-aside-step-4"
    assert damaged.folder == aside
    assert not (story.root / "checkpoints" / "step-4").exists()


async def test_without_any_sound_checkpoint_all_steps_are_taken_again_from_the_log(story):
    for step in (2, 4):
        flip(story.root / "checkpoints" / f"step-{step}" / "trainer_state.pt")
    emitted = await story.again(engine := FileEngine())
    assert engine.loaded == []
    assert engine.trained == [[5], [4], [3], [2], [1], [0]]
    assert [(event.step, event.weight_version) for event in of(emitted, CheckpointDamaged)] == [(4, 2), (2, 0)]


async def test_what_was_damaged_is_not_tried_again_in_the_next_life(story):
    flip(story.root / "checkpoints" / "step-4" / "config.json")
    story.log += [RESUMED, *of(await story.again(FileEngine()), CheckpointDamaged)]
    emitted = await story.again(engine := FileEngine())
    assert (engine.loaded, of(emitted, CheckpointDamaged)) == (["step-2"], [])


async def test_a_sound_checkpoint_is_loaded_without_a_report(story):
    emitted = await story.again(engine := FileEngine())
    assert engine.loaded == ["step-4"]
    assert of(emitted, CheckpointDamaged) == of(emitted, StepDiffered) == []
    assert [event.step for event in of(emitted, StepCompleted)] == [6]


async def test_the_run_goes_back_to_the_checkpoint_that_is_asked_for(story):
    emitted = await story.again(engine := FileEngine(), resumed=msgspec.structs.replace(RESUMED, from_step=2))
    assert (engine.loaded, of(emitted, CheckpointDamaged)) == (["step-2"], [])
    assert engine.trained == [[5], [4], [3], [2], [1], [0]]


async def test_a_batch_that_arrives_before_the_event_of_the_resumption_does_not_take_the_later_checkpoint_for_damaged(
    story,
):
    trainer = story.trainer(engine := FileEngine())
    await story.send(trainer, *(message for message in story.log if type(message) in trainer.handlers), replayed=True)
    (story.root / "checkpoints" / "step-4").rename(story.root / "checkpoints" / "left-step-4")
    emitted = await story.send(trainer, drawn(STEPS, 0), msgspec.structs.replace(RESUMED, from_step=2))
    assert (engine.loaded, of(emitted, CheckpointDamaged)) == (["step-2"], [])
    assert engine.trained == [[5], [4], [3], [2], [1], [0]]


async def test_a_run_asked_to_begin_at_its_first_weights_does(story):
    await story.again(engine := FileEngine(), resumed=msgspec.structs.replace(RESUMED, from_step=0))
    assert engine.loaded == []
    assert engine.trained == [[5], [4], [3], [2], [1], [0]]


async def test_a_run_folder_that_was_moved_continues(story):
    there = story.root.with_name(f"{story.root.name}-moved")
    story.root.rename(there)
    story.root = there
    await story.again(engine := FileEngine())
    assert engine.loaded == ["step-4"]


async def test_a_checkpoint_of_an_earlier_version_has_no_manifest_and_is_loaded_with_a_word_about_it(story):
    old = story.root / "checkpoints" / "step-4"
    (old / MANIFEST).unlink()
    place = story.log.index(saved := of(story.log, CheckpointCommitted)[-1])
    story.log[place] = msgspec.structs.replace(saved, manifest="", kept=(), folder=f"/elsewhere/runs/a/{saved.folder}")
    emitted = await story.again(engine := FileEngine())
    assert engine.loaded == ["step-4"]
    assert any("without a manifest to verify it" in phase.phase for phase in of(emitted, TrainerProgress))
    (old / "trainer_state.pt").write_text("[4, [[5], [4], [3], [7]]]")
    with pytest.raises(StepMismatch, match="step 4 was replayed with weights"):
        await story.again(FileEngine())


# ------------------------------------------------------------ steps that come to something else


async def test_a_step_that_differs_goes_back_once_and_then_ends_the_run_with_both_checksums(story):
    with pytest.raises(StepMismatch) as caught:
        await story.again(engine := FileEngine(drift="!"))
    logged = [event.weights_checksum for event in of(story.log, StepCompleted)]
    assert engine.loaded == ["step-4", "step-2"]
    assert f"step 2 was replayed with weights {logged[1]}!, expected {logged[1]} from the log" in str(caught.value)
    for words in ("memory is faulty", "areal-actors resume RUN --from step-N", "trainer.retaken_steps"):
        assert words in str(caught.value)


async def test_other_rows_than_the_logs_are_found(story):
    place = story.log.index(done := of(story.log, StepCompleted)[-1])
    story.log[place] = msgspec.structs.replace(done, sequences_checksum="other")
    with pytest.raises(StepMismatch, match=r"step 5 was replayed with sequences .*, expected other from the log"):
        await story.again(FileEngine())


async def test_the_first_weights_are_compared_too(story):
    shutil.rmtree(story.root / "checkpoints")
    with pytest.raises(StepMismatch, match="step 0 was replayed with weights"):
        await story.again(FileEngine(drift="!"))


async def test_where_arithmetic_does_not_repeat_the_run_continues_and_both_checksums_are_reported(story):
    emitted = await story.again(FileEngine(drift="!"), repeats=False)
    differed = of(emitted, StepDiffered)
    assert [event.step for event in differed] == [4, 5]
    assert all(event.found == f"{event.logged}!" for event in differed)
    assert of(emitted, StepCompleted)[-1].step == 6


async def test_other_settings_may_compute_otherwise(story):
    emitted = await story.again(FileEngine(drift="!"), resumed=OTHER_SETTINGS)
    assert [event.step for event in of(emitted, StepDiffered)] == [4, 5]
    assert "other settings of [trainer]" in of(emitted, StepDiffered)[0].reason


async def test_a_version_that_a_killed_trainer_has_published_is_compared_when_its_event_arrives(send, tmp_path):
    story = Story(send, tmp_path)
    trainer = story.trainer(FileEngine())
    await send(trainer, STARTED, drawn(0, 4))
    mine = WeightsPublished(
        weight_version=1, location=msgspec.structs.replace(trainer.engine.publish("v1"), checksum="of another life")
    )
    with pytest.raises(StepMismatch, match=r"with weights of another life, expected \[\[4\]\] from the log"):
        await send(trainer, mine)


# ------------------------------------------------------------ writing


async def test_what_cannot_be_written_is_not_left_behind_and_a_full_disk_is_named(send, tmp_path):
    class Full(FileEngine):
        def save(self, folder):
            super().save(folder)
            raise OSError(28, "No space left on device")

    (tmp_path / "checkpoints").mkdir()
    story = Story(send, tmp_path)
    with pytest.raises(
        SetupError,
        match=(
            r"cannot write a checkpoint to .*: the disk is full \(.* MiB free\); free space, then `areal-actors resume"
        ),
    ):
        await send(
            story.trainer(Full()), STARTED, SaveCheckpoint(folder="checkpoints/.writing-step-0", reason="schedule")
        )
    assert list((tmp_path / "checkpoints").iterdir()) == []
