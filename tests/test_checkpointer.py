from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from areal_actors.actors.checkpointer import CheckpointConfig, Checkpointer
from areal_actors.messages import (
    BestCheckpointChosen,
    CheckpointSaved,
    CheckpointWritten,
    EvaluationCompleted,
    LossEvaluated,
    RunStopping,
    SaveCheckpoint,
    StepCompleted,
)


def checkpointer(folder, every=2, steps=5, keep=2, best="", evaluated_every=0):
    config = CheckpointConfig(every_steps=every, keep_last=keep, keep_best=best)
    return Checkpointer(config, folder=folder, steps=steps, evaluated_every=evaluated_every)


def evaluated(version, reward, mode="greedy", failed=0):
    return EvaluationCompleted(
        weight_version=version,
        mode=mode,
        tasks=4,
        failed=failed,
        accuracy=0.0,
        mean_tokens=1.0,
        worked_share=0.0,
        common_reward_mean=reward,
    )


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


async def trained(say, actor, *steps, late=0):
    """The trainer takes these steps and saves where it is asked to, `late` steps later."""
    said = []
    for step in steps:
        for save in await say(actor, stepped(step)):
            said += await say(actor, written(save, step + late))
    return [message for message in said if isinstance(message, BestCheckpointChosen)]


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


async def test_the_best_is_kept_beside_the_newest_and_a_link_leads_to_it(say, tmp_path):
    actor = checkpointer(tmp_path, every=0, steps=8, keep=1, best="greedy", evaluated_every=2)
    chosen = []
    for step, reward in ((2, 0.3), (4, 0.6), (6, 0.5), (8, 0.6)):
        await trained(say, actor, step - 1, step)
        chosen += await say(actor, evaluated(step, 0.99, mode="sampled"), evaluated(step, reward))
    assert [(best.step, best.weight_version, best.metric, best.value) for best in chosen] == [(2, 2, "greedy", 0.3), (4, 4, "greedy", 0.6)]
    assert names(tmp_path) == ["step-4", "step-8"]
    assert (tmp_path / "best").readlink() == Path("step-4")
    assert (tmp_path / "best" / "model.safetensors").read_text() == "weights 4"
    assert msgspec.json.decode((tmp_path / "best.json").read_bytes(), type=BestCheckpointChosen) == chosen[-1]
    assert not list(tmp_path.glob(".writing-*"))


async def test_the_lowest_loss_is_the_best(say, tmp_path):
    actor = checkpointer(tmp_path, every=0, steps=6, keep=1, best="loss", evaluated_every=2)
    for step, loss in ((2, 1.5), (4, 0.5), (6, 0.9)):
        await trained(say, actor, step)
        await say(actor, LossEvaluated(weight_version=step, examples=9, metrics={"loss": loss}))
    assert (tmp_path / "best").readlink() == Path("step-4")


async def test_the_baseline_and_an_evaluation_in_which_everything_failed_choose_nothing(say, tmp_path):
    actor = checkpointer(tmp_path, steps=4, best="greedy", evaluated_every=2)
    await trained(say, actor, 2)
    assert await say(actor, evaluated(0, 1.0), evaluated(2, 0.0, failed=4)) == []


async def test_checkpoints_wait_for_their_evaluation_however_slow_it_is(say, tmp_path):
    actor = checkpointer(tmp_path, every=0, steps=12, keep=1, best="greedy", evaluated_every=2)
    await trained(say, actor, 2, 4, 6, 8)
    assert names(tmp_path) == ["step-2", "step-8"], "that under way, and that which would be next"
    assert [best.step for best in await say(actor, evaluated(2, 0.7))] == [2]
    await trained(say, actor, 10)
    assert await say(actor, evaluated(8, 0.1)) == []
    assert names(tmp_path) == ["step-10", "step-2"]


async def test_an_evaluation_that_began_late_or_a_checkpoint_saved_late_belong_to_the_step_at_which_they_fell_due(say, tmp_path):
    actor = checkpointer(tmp_path, every=0, steps=12, keep=1, best="sampled", evaluated_every=5)
    await trained(say, actor, 5, late=1)
    (best,) = await say(actor, evaluated(7, 0.4, mode="sampled"))
    assert (best.step, best.weight_version) == (6, 7)


async def test_a_fast_evaluation_is_remembered_until_its_checkpoint_is_there(say, tmp_path):
    actor = checkpointer(tmp_path, every=0, steps=4, best="greedy", evaluated_every=2)
    assert await say(actor, evaluated(2, 0.4)) == []
    assert [best.step for best in await trained(say, actor, 2)] == [2]


async def test_heard_again_the_past_gives_the_same_shelf_and_touches_no_file(say, tmp_path):
    actor = checkpointer(tmp_path, every=1, steps=6, keep=1, best="greedy", evaluated_every=2)
    heard = []
    for step, reward in ((1, 0), (2, 0.5), (3, 0), (4, 0.2), (5, 0)):
        (save,) = await say(actor, stepped(step))
        heard += [written(save, step), *([evaluated(step, reward)] if step % 2 == 0 else [])]
        await say(actor, *heard[-2:] if step % 2 == 0 else heard[-1:])
    before = names(tmp_path)
    again = checkpointer(tmp_path, every=1, steps=6, keep=1, best="greedy", evaluated_every=2)
    for message in heard:
        turn = SimpleNamespace(replayed=True, sequence=1)
        assert [said async for said in again.receive(message, turn)] or isinstance(message, EvaluationCompleted)
    assert again.shelf == actor.shelf
    assert names(tmp_path) == before == ["step-2", "step-5"]
