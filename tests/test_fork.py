"""A fork shares the beginning of its run; settings decide which episodes stay valid, and others are not trained."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from support.samples import SAMPLING, abandoned, batch, exported, published, work
from test_batcher import batcher, group
from test_task_source import Numbered

from areal_actors import cli
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.fork.changes import fork_recipe
from areal_actors.fork.folder import link_tree
from areal_actors.fork.recorded_run import RecordedRun
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    CheckpointCommitted,
    EpisodeScored,
    RunForked,
    StepCompleted,
    TrajectoryDropped,
    WeightsPublished,
)
from areal_actors.recipe.load import load
from areal_actors.tasks.task_source import TaskSource
from areal_bus.base import Envelope, Stamp
from areal_bus.recorded import FORMAT_VERSION, read_log

ROOT = Path(__file__).parent.parent
LOG = ROOT / "tests" / "recordings" / f"log-{FORMAT_VERSION}.xz"
STEP = 2
FORKED = RunForked(parent="base", step=1, prefix=9, head="", reused=0, reason="", discarded_below=2)


@pytest.fixture(scope="module")
def events():
    return list(read_log(LOG))


@pytest.fixture(scope="module")
def recorded(events):
    run = RecordedRun()
    for envelope in events:
        run.receive(envelope)
    return run


@pytest.fixture(scope="module")
def recipe():
    return load(
        [ROOT / "recipes" / "gsm8k_grpo.toml"], ["profile=embedded"], CudaDevices(count=0, reason="none")
    ).recipe


def positions(events, recorded):
    return {envelope.sender: recorded.last for envelope in events if envelope.cause}


# ------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "reuse"),
    [
        ([], "batch"),
        (["trainer.optimizer.lr=1e-5", "checkpoint.every_steps=3"], "batch"),
        (["algorithm.name=rloo"], "batch"),
        (["trainer.batch_size=4"], "episodes"),
        (["trainer.optimizer.lr=1e-5", "staleness_gate.max_staleness=1"], "episodes"),
        (["task.turn_discount=0.9"], "episodes"),
        (["sampling.temperature=0.5", "trainer.optimizer.lr=1e-5"], "nothing"),
        (["task.reward=math"], "nothing"),
        (["seed=4"], "nothing"),
    ],
)
def test_the_changed_settings_decide_what_stays_valid(recipe, settings, reuse):
    forked = fork_recipe(recipe, settings, "arm", "step-2")
    assert (forked.reuse, forked.recipe.run) == (reuse, "arm")
    assert all(setting.partition("=")[0] in forked.changed for setting in settings)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("model=other", "the weights are those of the checkpoint; start another run from the checkpoint"),
        ("trainer.optimizer.name=sgd", "the checkpoint has the state of the other optimizer"),
        ("algorithm.group_size=2", "groups that have begun have the other size"),
        ("run=other", "--name names the fork; leave it out"),
        ("algorithm.name=sft", "this algorithm does not learn from what the run learned from"),
        ("trainer.optimizer.lr=-1", "found -1"),
        ("trainer.optimiser.lr=1", "optimiser"),
    ],
)
def test_a_setting_that_cannot_change_is_refused_with_the_reason(recipe, setting, why):
    with pytest.raises(RecipeError) as refused:
        fork_recipe(recipe, [setting], "arm", "runs/base/checkpoints/step-2")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--at", "step-2"], "write `--name NAME`"),
        (["--at", "step-2", "--name", "x", "--arm", "y", "seed=1"], "leave --name out"),
        (["--at", "step-2", "--arm", "y", "seed=1", "--arm", "y", "seed=2"], "found y twice"),
        (["--at", "step-2", "--arm", "seed=1"], "found seed=1 in place of a name"),
        (["--at", "step-2", "--name", "x"], "has no run 'base'"),
    ],
)
def test_the_command_line_is_checked_before_anything_is_written(words, message, tmp_path, capsys):
    assert cli.main(["fork", "base", *words, "--folder", str(tmp_path)]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------ the shared beginning


@pytest.mark.parametrize("reuse", ["batch", "episodes", "nothing"])
def test_the_prefix_ends_before_the_first_event_that_the_settings_decide(events, recorded, reuse):
    beginning = recorded.begin_fork(STEP, reuse, positions(events, recorded))
    after = events[beginning.prefix]
    expected = {"batch": BatchFormed.subject, "nothing": WeightsPublished.subject}
    assert after.subject == expected.get(reuse, after.subject)
    assert beginning.head == recorded.heads[beginning.prefix - 1]
    steps = [
        event.open(StepCompleted).step for event in events[: beginning.prefix] if event.subject == "step.completed"
    ]
    assert steps == list(range(1, STEP + 1))
    assert all(before < later for before, later in pairwise((beginning.prefix, *beginning.copied)))
    assert bool(beginning.discarded_below) == (reuse == "nothing")


def test_reused_episodes_had_begun_and_were_sampled_by_weights_up_to_the_checkpoint():
    recorded = RecordedRun()
    messages = [
        published(0),
        CapacityGranted(first_group=0, groups=3, weight_version=0),
        *group(0, 0),
        batch(0, 0, members=2),
        EpisodeScored(work=work("1.0"), session="", reward=1.0),
        StepCompleted(step=1, metrics={}, sequences_checksum=""),
        published(1),  # the 8th event: the fork begins after it
        CheckpointCommitted(folder="checkpoints/step-1", step=1, cursor=5),
        CapacityGranted(first_group=3, groups=1, weight_version=1),
        EpisodeScored(work=work("2.0"), session="", reward=1.0),
        exported("2.0", 0, 1),
        exported("1.0", 0),
        abandoned("2.1", attempts_left=1),
        exported("3.0", 1),
        batch(1, 1),
        published(2),
        exported("1.1", 1, 2),
        exported("2.1", 1),
        exported("4.0", 1),
    ]
    for sequence, message in enumerate(messages, start=1):
        stamp = Stamp(id=f"{sequence}", sender="actor", time=0.0)
        recorded.receive(msgspec.structs.replace(Envelope.seal(message, stamp, "run"), sequence=sequence))
    beginning = recorded.begin_fork(1, "episodes", {})
    assert (beginning.prefix, beginning.copied, beginning.reused) == (8, (9, 11, 12, 13), 2)
    assert recorded.begin_fork(1, "nothing", {}).copied == (9,)


def test_an_actor_handles_again_what_it_has_not_answered_within_the_prefix(events, recorded):
    beginning = recorded.begin_fork(STEP, "batch", {**positions(events, recorded), "metrics-0": recorded.last})
    formed = events[beginning.prefix]
    cause = next(event.sequence for event in events if event.id == formed.cause)
    end = beginning.prefix + len(beginning.copied)
    assert beginning.positions[formed.sender] == cause - 1
    assert beginning.positions["trainer-0"] == end
    assert beginning.positions["metrics-0"] == 0
    assert all(position <= end for position in beginning.positions.values())


# ------------------------------------------------------------ episodes of the other settings


async def test_groups_with_other_settings_are_dropped_when_they_are_complete_and_never_trained(send):
    actor = batcher(batch_size=1)
    assert await send(actor, *group(0, 0), exported("1.0", 0)) == []
    dropped = await send(actor, FORKED)
    assert [(event.episode, event.reason) for event in dropped] == [("0.0", "forked"), ("0.1", "forked")]
    late = await send(actor, published(1), exported("1.1", 0))
    assert [type(event) for event in late] == [TrajectoryDropped, TrajectoryDropped]
    (formed,) = await send(actor, *group(2, 1))
    assert [member.episode for member in formed.groups[0]] == ["2.0", "2.1"]


async def test_complete_groups_are_judged_again_after_a_fork(send):
    actor = batcher(batch_size=2)
    await send(actor, published(0), *group(0, 0))
    assert await send(actor, msgspec.structs.replace(FORKED, discarded_below=0)) == []
    assert len(await send(actor, *group(1, 0))) == 1


async def test_episodes_with_other_settings_are_abandoned_and_no_failures(send):
    actor = TaskSource(Numbered(), group_size=2, sampling=SAMPLING, retries=1)
    await send(actor, CapacityGranted(first_group=0, groups=3, weight_version=0), batch(0, 0, members=2))
    gone = await send(actor, FORKED)
    assert [(event.work.episode, event.work.attempts_left, event.reason) for event in gone] == [
        ("1.0", 0, "forked"),
        ("1.1", 0, "forked"),
    ]
    assert sorted(actor.attempts.latest) == ["2.0", "2.1"]


# ------------------------------------------------------------ files


def test_files_are_linked_and_the_proof_is_left_with_the_run(tmp_path):
    (tmp_path / "step-2").mkdir()
    for name in ("model.safetensors", "proof.json"):
        (tmp_path / "step-2" / name).write_text(name)
    link_tree(tmp_path / "step-2", tmp_path / "fork")
    assert [path.name for path in (tmp_path / "fork").iterdir()] == ["model.safetensors"]
    assert (tmp_path / "fork" / "model.safetensors").samefile(tmp_path / "step-2" / "model.safetensors")
