"""Training for a hand-written loop: the engine of a run behind names that AReaL's users know."""

from __future__ import annotations

import msgspec
import pytest
import torch
from support.controller_harness import ROWS, OneCallWorkflow, controller, recipe_for
from support.live_run import ROOT, LiveRun
from support.tiny_trainer import same, sequences_of, weights, write_model

from areal_actors.batching.assembler import TrajectoryInfo, TrajectoryTotals
from areal_actors.core.errors import CheckpointError, EngineError, RolloutError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.library.controllers import RolloutBatch, RolloutController, TrainController, in_process, recipe
from areal_actors.messages import BatchFormed, StepCompleted, TrajectoryExported, WeightsPublished
from areal_actors.training.settings import OptimizerSettings, TrainerSettings
from areal_bus.errors import LogUnavailable


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.fixture
def train(tmp_path, model):
    made = []

    def make(trajectories=None, **settings):
        optimizer = OptimizerSettings(lr=1e-3, schedule="linear")
        tables = msgspec.structs.replace(
            recipe_for(tmp_path), trainer=TrainerSettings(device="cpu", optimizer=optimizer, **settings)
        )
        made.append(TrainController(tables, trajectories, model_folder=model))
        return made[-1]

    yield make
    for controller_made in made:
        controller_made.close()


def test_a_step_by_parts_is_a_step(train):
    whole, parts = train(), train()
    rows = sequences_of(whole.engine, off=0.1)
    metrics = whole.train_batch(rows)
    prepared = parts.compute_advantages_and_returns(rows)
    assert same(weights(parts.engine), weights(train().engine)), "preparing changes no weight"
    assert parts.ppo_update(prepared) == metrics
    assert same(weights(whole.engine), weights(parts.engine))
    assert whole.upload_weights() == parts.upload_weights()
    assert (whole.weight_version, parts.weight_version) == (1, 1)


def test_advantages_may_be_changed_in_between(train):
    plain, silenced = train(), train()
    rows = sequences_of(plain.engine)
    prepared = silenced.compute_advantages_and_returns(rows)
    nothing = msgspec.structs.replace(prepared.advantages, tokens=torch.zeros_like(prepared.advantages.tokens))
    metrics = silenced.ppo_update(msgspec.structs.replace(prepared, advantages=nothing))
    assert metrics["grad_norm"] == 0
    assert plain.train_batch(rows)["grad_norm"] > 0


def test_what_is_looked_at_stays_as_it_is(train):
    trainer = train()
    rows, before = sequences_of(trainer.engine), weights(trainer.engine)
    logp = trainer.compute_logp(rows)
    sampled = torch.cat([torch.from_numpy(row.logprobs[row.loss_mask]) for row in rows])
    assert torch.allclose(logp, sampled, atol=1e-4)
    split = trainer.forward(rows)
    assert [len(part) for part in split] == [int(row.loss_mask.sum()) for row in rows]
    assert torch.equal(torch.cat(split), logp)
    assert trainer.eval_batch(rows)["sequences"] == len(rows)
    with pytest.raises(EngineError, match="neither a critic nor a scalar head"):
        trainer.compute_values(rows)
    assert same(weights(trainer.engine), before)
    assert trainer.weight_version == 0


def test_the_learning_rate_of_the_next_step_follows_the_schedule(train):
    trainer = train()
    assert trainer.step_lr_scheduler() == 1e-3
    trainer.train_batch(sequences_of(trainer.engine))
    assert trainer.step_lr_scheduler() == pytest.approx(9e-4)
    assert trainer.train_batch(sequences_of(trainer.engine))["lr"] == pytest.approx(9e-4)


def test_a_checkpoint_of_a_loop_is_gone_on_from(train, tmp_path):
    one, other = train(), train()
    one.train_batch(sequences_of(one.engine))
    one.save(tmp_path / "checkpoint")
    other.load(tmp_path / "checkpoint")
    rows = sequences_of(one.engine, seed=1)
    assert one.train_batch(rows) == other.train_batch(rows)
    assert one.upload_weights() == other.upload_weights()
    with pytest.raises(CheckpointError, match="nowhere"):
        other.load(tmp_path / "nowhere")


def test_a_batch_without_access_to_its_trajectories_is_an_error_with_a_remedy(train):
    batch = RolloutBatch(
        run="loop", step=0, groups=(), oldest_version=0, trained=TrajectoryTotals(), dropped=TrajectoryTotals()
    )
    with pytest.raises(RolloutError, match=r"TrainController\(recipe, rollouts\)"):
        train().train_batch(batch)
    with pytest.raises(RolloutError, match="all its episodes were abandoned"):
        train(Kept([])).train_batch(batch)


async def test_references_to_another_log_are_refused(train, tmp_path):
    async with controller(recipe_for(tmp_path)) as rollouts:
        batch = await rollouts.rollout_batch(ROWS[:2], OneCallWorkflow(), timeout=300)
        trajectories = await rollouts.trajectories(batch)
    with pytest.raises(LogUnavailable, match=r"holds episode 0\.1, not 0\.0: the batch belongs to another run"):
        train(Kept(trajectories[1:] + trajectories[:1])).sequences(batch)
    rows = train(Kept(trajectories)).sequences(batch)
    assert [row.group for row in rows] == [0, 0, 1, 1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=RolloutBatch) == batch


class Kept:
    """Trajectories in the order in which they are asked for."""

    def __init__(self, trajectories):
        self.kept = trajectories

    def trajectories(self, batch):
        return self.kept


class LogOf:
    """The log of a run that has ended."""

    def __init__(self, log):
        self.by_sequence = {
            sequence: event.trajectory for sequence, event in log if isinstance(event, TrajectoryExported)
        }

    def trajectories(self, batch):
        return [self.by_sequence[reference.sequence] for reference in batch.references()]

    def batch(self, formed):
        groups = tuple(
            tuple(TrajectoryInfo.of(self.by_sequence[one.sequence], one.sequence) for one in group)
            for group in formed.groups
        )
        trained = TrajectoryTotals(trajectories=formed.trained_trajectories, tokens=formed.trained_tokens)
        dropped = TrajectoryTotals(trajectories=formed.dropped_trajectories, tokens=formed.dropped_tokens)
        return RolloutBatch(
            run="",
            step=formed.step,
            groups=groups,
            oldest_version=formed.oldest_version,
            trained=trained,
            dropped=dropped,
        )


@pytest.mark.long
@pytest.mark.slow
async def test_a_loop_gives_the_weights_and_metrics_of_the_run_whose_batches_it_is_given(tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def score(task, output):\n    return float(len(output) % 3)\n")
    run = LiveRun(
        tmp_path / "runs", "steps=4", "evaluation.tasks=0", "algorithm.minibatches=2", f"task.reward={reward}:score"
    )
    try:
        assert await run.ended() == 0, run.output()
    finally:
        run.abort()
    log = await run.log()
    published = {
        event.weight_version: event.location.checksum for _, event in log if isinstance(event, WeightsPublished)
    }
    steps = {event.step: event.metrics for _, event in log if isinstance(event, StepCompleted)}
    batches = [event for _, event in log if isinstance(event, BatchFormed)]
    assert sorted(published) == [0, 1, 2, 3, 4]
    again = msgspec.structs.replace(RunFolder(run.folder).recipe(), folder=str(tmp_path / "loop"))
    kept = LogOf(log)
    with TrainController(again, kept) as trainer:
        checksums = {0: trainer.upload_weights().location.checksum}
        for formed in batches:
            batch = kept.batch(formed)
            assert batch.to_event() == msgspec.structs.replace(formed, oldest_sequence=0), "a loop trims no log"
            assert trainer.train_batch(batch) == steps[formed.step + 1]
            checksums[trainer.weight_version] = trainer.upload_weights().location.checksum
    assert checksums == published
    assert len(set(published.values())) == 5


@pytest.mark.slow
def test_a_script_trains_while_it_rolls_out(tmp_path):
    settings = (
        "warm_start.steps=5",
        "warm_start.tail_steps=0",
        "trainer.batch_size=2",
        "algorithm.group_size=2",
        "sampling.max_tokens=8",
    )
    config = recipe(ROOT / "recipes/gsm8k_grpo.toml", "profile=embedded", f"folder={tmp_path}", *settings)
    with RolloutController(config, in_process()) as rollouts, TrainController(config, rollouts) as trainer:
        rollouts.update_weights(trainer.upload_weights())
        for version in range(1, 4):
            batch = rollouts.prepare_batch(ROWS, OneCallWorkflow, timeout=300)
            metrics = trainer.train_batch(batch)
            assert metrics["train_infer_logprob_diff_max"] < 1e-4
            assert metrics["token_staleness_max"] <= config.staleness_gate.max_staleness
            assert rollouts.update_weights(trainer.upload_weights()) == version
