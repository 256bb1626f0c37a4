from __future__ import annotations

import pytest
from samples import abandoned, exported, published

from areal_actors.actors.batcher import Batcher
from areal_actors.batching import BatcherConfig
from areal_actors.messages import BatchFormed, TrajectoryDropped


def batcher(policy="mask", lost_sample="train_without", *, group_size=2, batch_size=2, max_staleness=1, steps=10):
    config = BatcherConfig(exit_policy=policy, lost_sample=lost_sample)
    return Batcher(config, group_size=group_size, batch_size=batch_size, max_staleness=max_staleness, steps=steps)


def group(number, *versions, members=2):
    return [exported(f"{number}.{member}", *versions) for member in range(members)]


async def test_a_batch_names_each_trajectory_by_its_place_in_the_log(say):
    stream = [published(0), exported("0.1"), exported("1.0"), exported("1.1"), exported("0.0")]
    (formed,) = await say(batcher(), *stream)
    assert isinstance(formed, BatchFormed)
    assert [[(member.episode, member.sequence) for member in members] for members in formed.groups] == [
        [("0.0", 5), ("0.1", 2)],
        [("1.0", 3), ("1.1", 4)],
    ]
    assert (formed.step, formed.group_numbers()) == (0, (0, 1))


async def test_a_batch_waits_for_the_trainer(say):
    actor = batcher()
    assert await say(actor, *group(0), *group(1)) == []
    assert len(await say(actor, published(0), *group(2), *group(3))) == 1
    (second,) = await say(actor, published(1))
    assert second.group_numbers() == (2, 3)


async def test_weights_published_again_form_no_second_batch(say):
    said = await say(batcher(), *group(0), *group(1), *group(2), *group(3), published(0), published(0))
    assert len(said) == 1


async def test_with_mask_a_wholly_stale_group_is_dropped_and_a_half_stale_one_is_trained_above_the_bound(say):
    actor = batcher(batch_size=1)
    said = await say(actor, *group(0, 0, 0), *group(1, 0, 4), published(5))
    assert [(drop.episode, drop.group, drop.reason) for drop in said[:2]] == [("0.0", "0", "stale"), ("0.1", "0", "stale")]
    assert said[2].group_numbers() == (1,)
    assert said[2].oldest_version == 4
    assert (said[2].dropped_tokens, said[2].dropped_trajectories) == (4, 2)
    assert (said[2].trained_tokens, said[2].trained_trajectories) == (4, 2)


async def test_with_drop_one_old_token_is_enough(say):
    said = await say(batcher("drop", batch_size=1), *group(0, 3, 5), published(5))
    assert {message.group for message in said} == {"0"}
    assert all(isinstance(message, TrajectoryDropped) for message in said)


async def test_with_keep_whatever_is_old_is_trained_and_no_token_masked(say):
    (formed,) = await say(batcher("keep", batch_size=1), *group(0, 0, 0), published(5))
    assert formed.oldest_version <= 0


@pytest.mark.parametrize(("lost_sample", "said"), [("train_without", BatchFormed), ("drop", TrajectoryDropped)])
async def test_a_group_that_lost_a_sample_follows_the_recipe(say, lost_sample, said):
    actor = batcher(lost_sample=lost_sample, batch_size=1)
    (message,) = await say(actor, published(0), exported("0.0"), abandoned("0.1"))
    assert isinstance(message, said)
    if isinstance(message, TrajectoryDropped):
        assert (message.episode, message.reason) == ("0.0", "incomplete group")


async def test_an_attempt_that_will_be_repeated_and_a_held_out_episode_lose_no_sample(say):
    actor = batcher(batch_size=1)
    stream = [exported("0.0"), abandoned("0.1", attempts_left=1), abandoned("evaluation-0-greedy.0", purpose="evaluate")]
    assert await say(actor, published(0), *stream) == []
    (formed,) = await say(actor, exported("0.1"))
    assert len(formed.groups[0]) == 2


async def test_an_episode_exported_twice_is_trained_once(say):
    actor = batcher(group_size=1, batch_size=1)
    said = await say(actor, published(0), exported("0.0"), published(1), exported("0.0"), published(2))
    assert [message.group_numbers() for message in said] == [(0,)]


async def test_after_the_last_step_no_batch_is_formed(say):
    actor = batcher(group_size=1, batch_size=1, steps=1)
    said = await say(actor, published(0), exported("0.0"), published(1), exported("1.0"))
    assert [message.step for message in said] == [0]
    assert actor.status() == {"complete_groups": 1, "open_groups": 0, "batch_size": 1, "batches_formed": 1}
