from __future__ import annotations

from pathlib import Path

import pytest

from areal_actors.actors.checkpointer import CheckpointConfig, Checkpointer
from areal_actors.messages import CheckpointSaved, CheckpointWritten, RunStopping, SaveCheckpoint, StepCompleted


def checkpointer(folder, every=2, steps=5, keep=2):
    return Checkpointer(CheckpointConfig(every_steps=every, keep=keep), folder=folder, steps=steps)


def stepped(step):
    return StepCompleted(step=step, metrics={}, rows_checksum="")


def written(save, step, cursor=7):
    """What the trainer does when it is asked to save."""
    path = Path(save.folder)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text(f"weights {step}")
    (path / "optimizer").mkdir()
    (path / "optimizer" / "state").write_text("state")
    return CheckpointWritten(folder=save.folder, step=step, cursor=cursor)


@pytest.mark.parametrize(
    ("every", "steps", "due"),
    [(2, 5, [2, 4, 5]), (0, 5, [5]), (5, 5, [5]), (10, 5, [5]), (1, 3, [1, 2, 3])],
)
async def test_saving_is_due_at_the_interval_and_at_the_end(say, tmp_path, every, steps, due):
    saves = await say(checkpointer(tmp_path, every, steps), *map(stepped, range(1, steps + 1)))
    assert all(isinstance(save, SaveCheckpoint) for save in saves)
    assert [save.folder for save in saves] == [str(tmp_path / f".writing-step-{step}") for step in due]


async def test_a_stopping_run_is_saved(say, tmp_path):
    (save,) = await say(checkpointer(tmp_path), RunStopping(reason="ctrl-c"))
    assert save.reason == "ctrl-c"


async def test_what_the_trainer_wrote_becomes_final_under_its_step(say, tmp_path):
    actor = checkpointer(tmp_path)
    (save,) = await say(actor, stepped(2))
    (saved,) = await say(actor, written(save, 2, cursor=99))
    final = tmp_path / "step-2"
    assert saved == CheckpointSaved(folder=str(final), step=2, cursor=99)
    assert (final / "model.safetensors").read_text() == "weights 2"
    assert (final / "optimizer" / "state").read_text() == "state"
    assert (final / "cursor").read_text() == "99\n"
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


async def test_the_newest_are_kept(say, tmp_path):
    actor = checkpointer(tmp_path, every=1, keep=2)
    for step in range(1, 5):
        (save,) = await say(actor, stepped(step))
        await say(actor, written(save, step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4"]


async def test_a_checkpoint_written_again_replaces_the_old_one_of_its_step(say, tmp_path):
    actor = checkpointer(tmp_path)
    (save,) = await say(actor, stepped(2))
    await say(actor, written(save, 2))
    (save,) = await say(actor, RunStopping(reason="now"))
    await say(actor, written(save, 2, cursor=8))
    assert (tmp_path / "step-2" / "cursor").read_text() == "8\n"
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


async def test_the_same_news_heard_again_after_a_crash_leaves_the_checkpoint_as_it_is(say, tmp_path):
    actor = checkpointer(tmp_path)
    (save,) = await say(actor, stepped(2))
    news = written(save, 2)
    first = await say(actor, news)
    assert await say(checkpointer(tmp_path), news) == first
    assert (tmp_path / "step-2" / "model.safetensors").read_text() == "weights 2"
