"""Role-wise baselines (RAE): the paper's update over the episodes of batches, snapshots, roles of tasks and calls."""

from __future__ import annotations

import msgspec
import pytest
from support.samples import interaction, published, trajectory

from areal_actors.batching.assembler import BatcherConfig
from areal_actors.batching.batcher import Batcher
from areal_actors.core.errors import SetupError, UntrainableBatch
from areal_actors.display.sentences import plain_line
from areal_actors.messages import BatchFormed, StepCompleted, TrajectoryExported
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.sequence_check import SequenceLimits, batch_sequences
from areal_actors.sequences.step_metrics import batch_metrics
from areal_actors.tasks.roles import read_role
from areal_actors.training.algorithms import Rae
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.shaping import Shaping
from areal_actors.training.step_data import step_tokens

GAMES = [
    ("nim", "first", 1.0),
    ("nim", "second", -1.0),
    ("nim", "first", -1.0),
    ("poker", "first", 1.0),
    ("nim", "first", 1.0),
    ("nim", "second", -1.0),
    ("poker", "first", -1.0),
    ("nim", "second", 1.0),
]
"""Source, role and reward of episodes, each a group of one."""


class MovingAverage:
    """The average of the authors' code, which begins at 0."""

    def __init__(self, decay):
        self.decay, self.value = decay, 0.0

    def update(self, reward):
        self.value = self.decay * self.value + (1 - self.decay) * reward


def advantages_of_the_paper(games, decay):
    """Each episode is compared before its own update (SPIRAL, algorithm 1, with the order of the authors' code)."""
    averages, advantages = {}, []
    for source, role, reward in games:
        average = averages.setdefault((source, role), MovingAverage(decay))
        advantages.append(reward - average.value)
        average.update(reward)
    return advantages


def batcher(decay=0.8, credit=None):
    return Batcher(
        BatcherConfig(),
        group_size=1,
        batch_size=2,
        max_staleness=9,
        steps=10,
        credit=credit or Credit(),
        baseline_decay=decay,
    )


def played(games):
    return [
        msgspec.structs.replace(trajectory(f"{number}.0", reward=reward), source=source, role=role)
        for number, (source, role, reward) in enumerate(games)
    ]


async def batches_of(send, actor, trajectories, steps, after=0):
    emitted = []
    for step in range(after, after + steps):
        exported = [TrajectoryExported(trajectory=one) for one in trajectories[2 * step : 2 * step + 2]]
        emitted += await send(actor, published(step), *exported)
    return [event for event in emitted if isinstance(event, BatchFormed)]


def advantages_of(algorithm, batch, trajectories, credit=None):
    members = [member for group in batch.groups for member in group]
    by_name = {one.episode: one for one in trajectories}
    whole = [(index, by_name[member.episode]) for index, member in enumerate(members)]
    sequences = batch_sequences(batch, whole, credit or Credit(), SequenceLimits()).sequences
    step = step_tokens(sequences, batch.step)
    return algorithm.advantages(step).tokens.tolist()


@pytest.mark.parametrize("decay", [0.0, 0.8, 0.95])
async def test_advantages_are_those_of_the_paper_s_update_over_the_episodes_in_order(send, decay):
    trajectories = played(GAMES)
    batches = await batches_of(send, batcher(decay), trajectories, 4)
    advantages = [value for batch in batches for value in advantages_of(Rae(), batch, trajectories)[::2]]
    assert advantages == pytest.approx(advantages_of_the_paper(GAMES, decay))
    assert batches[2].groups[0][0].baselines == {"nim/first": pytest.approx(decay * (1 - decay) * 1.0 - (1 - decay))}


async def test_a_batcher_that_is_restored_goes_on_with_the_same_baselines(send):
    trajectories = played(GAMES)
    whole = await batches_of(send, batcher(), trajectories, 4)
    killed, other = batcher(), batcher()
    await batches_of(send, killed, trajectories, 2)
    other.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(killed.snapshot()), type=type(killed.snapshot())))
    later = await batches_of(send, other, trajectories, 2, after=2)
    assert [[member.baselines for (member,) in batch.groups] for batch in later] == [
        [member.baselines for (member,) in batch.groups] for batch in whole[2:]
    ]


async def test_two_players_of_one_policy_have_a_baseline_each(send):
    credit = Credit(baseline_over="roles")
    calls = [
        msgspec.structs.replace(interaction(role, "ab", 0), role=role, reward=reward)
        for role, reward in (("first", 1.0), ("second", -1.0))
    ]
    trajectories = [trajectory(f"{number}.0", *calls) for number in range(4)]
    _, second = await batches_of(send, batcher(0.5, credit), trajectories, 2)
    assert second.groups[0][0].baselines == {"first": 0.75, "second": -0.75}
    assert advantages_of(Rae(), second, trajectories, credit)[::2] == pytest.approx([0.25, -0.25, 0.125, -0.125])


async def test_the_baselines_of_a_step_are_metrics_and_a_part_of_its_sentence(send):
    trajectories = played([("", role, reward) for _, role, reward in GAMES[:4]])
    _, batch = await batches_of(send, batcher(0.5), trajectories, 2)
    whole = [(index, one) for index, one in enumerate(trajectories[2:])]
    sequences = batch_sequences(batch, whole, Credit(), SequenceLimits()).sequences
    metrics = batch_metrics(sequences, batch)
    assert metrics["baseline/first"] == pytest.approx((0.5 - 0.25) / 2)
    completed = StepCompleted(step=1, metrics={"baseline/first": 0.125, "baseline/second": -0.5}, sequences_checksum="")
    assert "baseline of first 0.125, second -0.500" in plain_line(completed)


async def test_without_a_decay_no_episode_has_a_baseline_and_rae_does_not_train_the_batch(send):
    trajectories = played(GAMES)
    (batch,) = await batches_of(send, batcher(None), trajectories, 1)
    assert [member.baselines for (member,) in batch.groups] == [{}, {}]
    with pytest.raises(UntrainableBatch, match="no role-wise baseline"):
        advantages_of(Rae(), batch, trajectories)


@pytest.mark.parametrize(("row", "role"), [({"role": "first"}, "first"), ({"role": 0}, "0")])
def test_a_role_is_a_text_or_a_whole_number(row, role):
    assert read_role(row, "role") == role


@pytest.mark.parametrize("row", [{"id": "nim-3", "side": "first"}, {"id": "nim-3", "role": None}, {"role": " "}])
def test_a_task_without_a_role_is_refused_by_name(row):
    with pytest.raises(SetupError, match=r"algorithm\.role_field: task .* has no role: .*`role`"):
        read_role(row, "role")


def test_rewards_that_are_shaped_are_refused_since_the_averages_are_not():
    (problem,) = Rae(shaping=Shaping(scale=2.0)).problems()
    assert problem[0] == ("shaping", "scale")
    assert list(Rae(kl=Kl(coefficient=0.1, apply_to="reward")).problems()) == []
