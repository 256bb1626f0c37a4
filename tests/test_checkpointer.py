from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from areal_actors.messages import (
    BestCheckpointChosen,
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointStaged,
    EvaluationCompleted,
    LossEvaluated,
    RunResumed,
    RunStopping,
    SaveCheckpoint,
    StepCompleted,
)
from areal_actors.training.checkpointer import CheckpointConfig, Checkpointer
from areal_actors.weights.manifest import digest_of_manifest, verify


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of checkpoints; the run's folder is the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


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
        common_reward_mean=reward,
    )


def stepped(step):
    return StepCompleted(step=step, metrics={}, sequences_checksum="")


def written(save, step, cursor=7):
    """Files and event of the trainer when it is asked to save."""
    path = Path(save.folder)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text(f"weights {step}")
    (path / "optimizer").mkdir()
    (path / "optimizer" / "state").write_text("state")
    return CheckpointStaged(folder=save.folder, step=step, cursor=cursor)


@pytest.mark.parametrize(
    ("every", "steps", "due"),
    [(2, 5, [2, 4, 5]), (0, 5, [5]), (5, 5, [5]), (10, 5, [5]), (1, 3, [1, 2, 3])],
)
async def test_saving_is_due_at_the_interval_and_at_the_end(send, folder, every, steps, due):
    saves = await send(checkpointer(folder, every, steps), *map(stepped, range(1, steps + 1)))
    assert all(isinstance(save, SaveCheckpoint) for save in saves)
    assert [save.folder for save in saves] == [f"checkpoints/.writing-step-{step}" for step in due]


async def test_a_stopping_run_is_saved(send, folder):
    (save,) = await send(checkpointer(folder), RunStopping(reason="ctrl-c"))
    assert save.reason == "ctrl-c"


async def test_what_the_trainer_wrote_becomes_final_under_its_step(send, folder):
    actor = checkpointer(folder)
    (save,) = await send(actor, stepped(2))
    (saved,) = await send(actor, written(save, 2, cursor=99))
    final = folder / "step-2"
    digest = digest_of_manifest(final)
    assert saved == CheckpointCommitted(folder="checkpoints/step-2", step=2, cursor=99, manifest=digest, kept=(2,))
    verify(final, digest)
    assert (final / "model.safetensors").read_text() == "weights 2"
    assert (final / "optimizer" / "state").read_text() == "state"
    assert (final / "cursor").read_text() == "99\n"
    assert [path.name for path in folder.iterdir()] == ["step-2"]


async def test_the_newest_are_kept(send, folder):
    actor = checkpointer(folder, every=1, keep=2)
    for step in range(1, 5):
        (save,) = await send(actor, stepped(step))
        await send(actor, written(save, step))
    assert sorted(path.name for path in folder.iterdir()) == ["step-3", "step-4"]


async def test_a_checkpoint_written_again_replaces_the_old_one_of_its_step(send, folder):
    actor = checkpointer(folder)
    (save,) = await send(actor, stepped(2))
    await send(actor, written(save, 2))
    (save,) = await send(actor, RunStopping(reason="now"))
    await send(actor, written(save, 2, cursor=8))
    assert (folder / "step-2" / "cursor").read_text() == "8\n"
    assert [path.name for path in folder.iterdir()] == ["step-2"]


async def test_the_same_events_replayed_after_a_crash_leave_the_checkpoint_unchanged(send, folder):
    actor = checkpointer(folder)
    (save,) = await send(actor, stepped(2))
    news = written(save, 2)
    first = await send(actor, news)
    assert await send(checkpointer(folder), news) == first
    assert (folder / "step-2" / "model.safetensors").read_text() == "weights 2"


async def saved_at(send, actor, *steps):
    """The events of checkpoints of these steps."""
    emitted = []
    for step in steps:
        (save,) = await send(actor, stepped(step))
        emitted += await send(actor, written(save, step, cursor=10 * step))
    return [message for message in emitted if isinstance(message, CheckpointCommitted)]


async def test_each_names_those_that_the_run_can_go_back_to_and_the_shelf_has_their_cursors(send, folder):
    actor = checkpointer(folder, every=1, keep=2)
    assert [saved.kept for saved in await saved_at(send, actor, 1, 2, 3)] == [(1,), (1, 2), (2, 3)]
    assert [(saved.step, saved.cursor) for saved in actor.retention.recoverable()] == [(2, 20), (3, 30)]


async def test_one_kept_as_the_best_is_not_gone_back_to(send, folder):
    actor = checkpointer(folder, every=0, steps=6, keep=1, best="loss", evaluated_every=2)
    for step, loss in ((2, 0.1), (4, 0.5)):
        await trained(send, actor, step)
        await send(actor, LossEvaluated(weight_version=step, examples=9, metrics={"loss": loss}))
    assert names(folder) == ["step-2", "step-4"]
    assert [saved.step for saved in actor.retention.recoverable()] == [4]


async def test_a_damaged_one_is_not_counted_among_the_kept(send, folder):
    actor = checkpointer(folder, every=1, keep=2)
    await saved_at(send, actor, 1, 2)
    (folder / "step-2").rename(folder / "set-aside-step-2")
    await send(
        actor, CheckpointDamaged(step=2, folder="checkpoints/set-aside-step-2", weight_version=1, reason="a byte")
    )
    (saved,) = await saved_at(send, actor, 3)
    assert saved.kept == (1, 3)
    assert names(folder) == ["set-aside-step-2", "step-1", "step-3"]


async def test_a_damaged_best_is_the_best_no_more(send, folder):
    actor = checkpointer(folder, every=0, steps=6, keep=1, best="loss", evaluated_every=2)
    for step, loss in ((2, 0.1), (4, 0.5)):
        await trained(send, actor, step)
        await send(actor, LossEvaluated(weight_version=step, examples=9, metrics={"loss": loss}))
    (chosen,) = await send(actor, CheckpointDamaged(step=2, folder="", weight_version=0, reason="gone"))
    assert (chosen.step, (folder / "best").readlink()) == (4, Path("step-4"))
    assert await send(actor, CheckpointDamaged(step=4, folder="", weight_version=0, reason="gone")) == []
    assert not (folder / "best").is_symlink()


async def test_a_run_that_goes_back_further_keeps_none_of_the_later_ones(send, folder):
    actor = checkpointer(folder, every=1, keep=2)
    await saved_at(send, actor, 1, 2)
    await send(
        actor, RunResumed(recipe={}, reason="", folder="", from_step=1), RunResumed(recipe={}, reason="", folder="")
    )
    assert actor.retention.steps() == {1}


async def trained(send, actor, *steps, late=0):
    """The trainer takes these steps and saves where it is asked to, `late` steps later."""
    emitted = []
    for step in steps:
        for save in await send(actor, stepped(step)):
            emitted += await send(actor, written(save, step + late))
    return [message for message in emitted if isinstance(message, BestCheckpointChosen)]


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


async def test_the_best_is_kept_beside_the_newest_and_a_link_leads_to_it(send, folder):
    actor = checkpointer(folder, every=0, steps=8, keep=1, best="greedy", evaluated_every=2)
    chosen = []
    for step, reward in ((2, 0.3), (4, 0.6), (6, 0.5), (8, 0.6)):
        await trained(send, actor, step - 1, step)
        chosen += await send(actor, evaluated(step, 0.99, mode="sampled"), evaluated(step, reward))
    assert [(best.step, best.weight_version, best.metric, best.value) for best in chosen] == [
        (2, 2, "greedy", 0.3),
        (4, 4, "greedy", 0.6),
    ]
    assert names(folder) == ["step-4", "step-8"]
    assert (folder / "best").readlink() == Path("step-4")
    assert (folder / "best" / "model.safetensors").read_text() == "weights 4"
    assert msgspec.json.decode((folder / "best.json").read_bytes(), type=BestCheckpointChosen) == chosen[-1]
    assert not list(folder.glob(".writing-*"))


async def test_the_lowest_loss_is_the_best(send, folder):
    actor = checkpointer(folder, every=0, steps=6, keep=1, best="loss", evaluated_every=2)
    for step, loss in ((2, 1.5), (4, 0.5), (6, 0.9)):
        await trained(send, actor, step)
        await send(actor, LossEvaluated(weight_version=step, examples=9, metrics={"loss": loss}))
    assert (folder / "best").readlink() == Path("step-4")


async def test_the_baseline_and_an_evaluation_in_which_everything_failed_choose_nothing(send, folder):
    actor = checkpointer(folder, steps=4, best="greedy", evaluated_every=2)
    await trained(send, actor, 2)
    assert await send(actor, evaluated(0, 1.0), evaluated(2, 0.0, failed=4)) == []


async def test_checkpoints_wait_for_their_evaluation_however_slow_it_is(send, folder):
    actor = checkpointer(folder, every=0, steps=12, keep=1, best="greedy", evaluated_every=2)
    await trained(send, actor, 2, 4, 6, 8)
    assert names(folder) == ["step-2", "step-8"], "that under way, and that which would be next"
    assert [best.step for best in await send(actor, evaluated(2, 0.7))] == [2]
    await trained(send, actor, 10)
    assert await send(actor, evaluated(8, 0.1)) == []
    assert names(folder) == ["step-10", "step-2"]


async def test_an_evaluation_that_began_late_or_a_checkpoint_saved_late_belong_to_the_step_at_which_they_were_due(
    send, folder
):
    actor = checkpointer(folder, every=0, steps=12, keep=1, best="sampled", evaluated_every=5)
    await trained(send, actor, 5, late=1)
    (best,) = await send(actor, evaluated(7, 0.4, mode="sampled"))
    assert (best.step, best.weight_version) == (6, 7)


async def test_a_fast_evaluation_is_remembered_until_its_checkpoint_is_there(send, folder):
    actor = checkpointer(folder, every=0, steps=4, best="greedy", evaluated_every=2)
    assert await send(actor, evaluated(2, 0.4)) == []
    assert [best.step for best in await trained(send, actor, 2)] == [2]


async def test_replayed_history_gives_the_same_retention_and_touches_no_file(send, folder):
    actor = checkpointer(folder, every=1, steps=6, keep=1, best="greedy", evaluated_every=2)
    events = []
    for step, reward in ((1, 0), (2, 0.5), (3, 0), (4, 0.2), (5, 0)):
        (save,) = await send(actor, stepped(step))
        events += [written(save, step), *([evaluated(step, reward)] if step % 2 == 0 else [])]
        await send(actor, *events[-2:] if step % 2 == 0 else events[-1:])
    before = names(folder)
    again = checkpointer(folder, every=1, steps=6, keep=1, best="greedy", evaluated_every=2)
    for message in events:
        turn = SimpleNamespace(replayed=True, sequence=1)
        assert [message_out async for message_out in again.receive(message, turn)] or isinstance(
            message, EvaluationCompleted
        )
    assert again.retention == actor.retention
    assert names(folder) == before == ["step-2", "step-5"]


async def test_a_resumed_run_removes_checkpoints_whose_writing_was_interrupted_and_no_others(send, folder):
    actor = checkpointer(folder)
    names = (".writing-step-2", ".writing-stop-9", "step-1")
    for name in names:
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_text("half")
        for path in (folder / name / "model.safetensors", folder / name):
            os.utime(path, (actor.began - 60, actor.began - 60))
    (folder / ".writing-stop-9" / "optimizer").write_text("being written by this start's trainer")
    resumed = RunResumed(recipe={}, reason="", folder="runs/r")
    assert await send(actor, resumed, replayed=True) == []
    assert sorted(path.name for path in folder.iterdir()) == sorted(names), "an earlier resumption"
    await send(actor, resumed)
    assert sorted(path.name for path in folder.iterdir()) == [".writing-stop-9", "step-1"]
