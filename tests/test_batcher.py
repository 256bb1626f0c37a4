from __future__ import annotations

import pytest
from support.samples import abandoned, exported, published, trajectory

from areal_actors.batching.assembler import BatcherConfig, has_signal
from areal_actors.batching.batcher import Batcher
from areal_actors.messages import BatchFormed, CapacityGranted, FilterExhausted, TrajectoryDropped, TrajectoryExported


def batcher(
    policy="mask",
    incomplete_groups="train_partial",
    *,
    group_size=2,
    batch_size=2,
    max_staleness=1,
    steps=10,
    keeps=None,
    **settings,
):
    config = BatcherConfig(exit_policy=policy, incomplete_groups=incomplete_groups, **settings)
    return Batcher(
        config, group_size=group_size, batch_size=batch_size, max_staleness=max_staleness, steps=steps, keeps=keeps
    )


def rewarded(number, *rewards):
    return [
        TrajectoryExported(trajectory=trajectory(f"{number}.{member}", reward=reward))
        for member, reward in enumerate(rewards)
    ]


def group(number, *versions, members=2):
    return [exported(f"{number}.{member}", *versions) for member in range(members)]


async def test_a_batch_names_each_trajectory_by_its_place_in_the_log(send):
    stream = [published(0), exported("0.1"), exported("1.0"), exported("1.1"), exported("0.0")]
    (formed,) = await send(batcher(), *stream)
    assert isinstance(formed, BatchFormed)
    assert [[(member.episode, member.sequence) for member in members] for members in formed.groups] == [
        [("0.0", 5), ("0.1", 2)],
        [("1.0", 3), ("1.1", 4)],
    ]
    assert (formed.step, formed.group_numbers()) == (0, (0, 1))


async def test_a_batch_waits_for_the_trainer(send):
    actor = batcher()
    assert await send(actor, *group(0), *group(1)) == []
    assert len(await send(actor, published(0), *group(2), *group(3))) == 1
    (second,) = await send(actor, published(1))
    assert second.group_numbers() == (2, 3)


async def test_weights_published_again_form_no_second_batch(send):
    emitted = await send(batcher(), *group(0), *group(1), *group(2), *group(3), published(0), published(0))
    assert len(emitted) == 1


async def test_with_mask_a_wholly_stale_group_is_dropped_and_a_half_stale_one_is_trained_above_the_bound(send):
    actor = batcher(batch_size=1)
    emitted = await send(actor, *group(0, 0, 0), *group(1, 0, 4), published(5))
    assert [(drop.episode, drop.group, drop.reason) for drop in emitted[:2]] == [
        ("0.0", "0", "stale"),
        ("0.1", "0", "stale"),
    ]
    assert emitted[2].group_numbers() == (1,)
    assert emitted[2].oldest_version == 4
    assert (emitted[2].dropped_tokens, emitted[2].dropped_trajectories) == (4, 2)
    assert (emitted[2].trained_tokens, emitted[2].trained_trajectories) == (4, 2)


async def test_with_wait_a_batch_waits_for_the_group_that_would_become_too_old(send):
    grants = [
        CapacityGranted(first_group=0, groups=2, weight_version=0),
        CapacityGranted(first_group=2, groups=2, weight_version=1),
    ]
    events = [published(0), *group(0, 0), published(1), *group(2, 1), *group(3, 1)]
    for policy, trained in {"mask": [(0,), (2,)], "wait": [(0,)]}.items():
        actor = batcher(policy, batch_size=1)
        emitted = await send(actor, grants[0], *events[:4], grants[1], *events[4:])
        assert [formed.group_numbers() for formed in emitted] == trained
    (formed,) = await send(actor, *group(1, 0, 1))
    assert (formed.group_numbers(), formed.oldest_version) == ((1,), 0)
    assert [one.group_numbers() for one in await send(actor, published(2))] == [(2,)]


async def test_with_drop_one_old_token_is_enough(send):
    emitted = await send(batcher("drop", batch_size=1), *group(0, 3, 5), published(5))
    assert {message.group for message in emitted} == {"0"}
    assert all(isinstance(message, TrajectoryDropped) for message in emitted)


async def test_with_keep_whatever_is_old_is_trained_and_no_token_masked(send):
    (formed,) = await send(batcher("keep", batch_size=1), *group(0, 0, 0), published(5))
    assert formed.oldest_version <= 0


@pytest.mark.parametrize(
    ("incomplete_groups", "expected"), [("train_partial", BatchFormed), ("drop", TrajectoryDropped)]
)
async def test_a_group_that_lost_a_sample_follows_the_recipe(send, incomplete_groups, expected):
    actor = batcher(incomplete_groups=incomplete_groups, batch_size=1)
    (message,) = await send(actor, published(0), exported("0.0"), abandoned("0.1"))
    assert isinstance(message, expected)
    if isinstance(message, TrajectoryDropped):
        assert (message.episode, message.reason) == ("0.0", "incomplete group")


async def test_an_attempt_that_will_be_repeated_and_a_held_out_episode_lose_no_sample(send):
    actor = batcher(batch_size=1)
    stream = [
        exported("0.0"),
        abandoned("0.1", attempts_left=1),
        abandoned("evaluation-0-greedy.0", purpose="evaluate"),
    ]
    assert await send(actor, published(0), *stream) == []
    (formed,) = await send(actor, exported("0.1"))
    assert len(formed.groups[0]) == 2


async def test_an_episode_exported_twice_is_trained_once(send):
    actor = batcher(group_size=1, batch_size=1)
    emitted = await send(actor, published(0), exported("0.0"), published(1), exported("0.0"), published(2))
    assert [message.group_numbers() for message in emitted] == [(0,)]


async def test_after_the_last_step_no_batch_is_formed(send):
    actor = batcher(group_size=1, batch_size=1, steps=1)
    formed, left = await send(actor, published(0), exported("0.0"), published(1), exported("1.0"))
    assert (formed.step, left.group, left.reason) == (0, "1", "surplus")
    assert actor.status() == {
        "complete_groups": 0,
        "open_groups": 0,
        "batch_size": 1,
        "batches_formed": 1,
        "filtered_groups": 0,
    }


async def test_groups_without_signal_are_dropped_with_a_reason_and_counted_in_the_batch(send):
    actor = batcher(keeps=has_signal, dynamic_sampling=True)
    emitted = await send(
        actor,
        published(0),
        *rewarded(0, 1.0, 1.0),
        *rewarded(1, 0.0, 1.0),
        *rewarded(2, 0.0, 0.0),
        *rewarded(3, 1.0, 0.0),
    )
    assert [(drop.episode, drop.group, drop.reason) for drop in emitted[:-1]] == [
        (f"{group}.{member}", str(group), "filtered") for group in (0, 2) for member in (0, 1)
    ]
    assert (emitted[-1].group_numbers(), emitted[-1].filtered_groups, emitted[-1].dropped_trajectories) == (
        (1, 3),
        2,
        4,
    )
    (next_,) = await send(actor, published(1), *rewarded(4, 0.0, 1.0), *rewarded(5, 1.0, 0.0))
    assert (next_.group_numbers(), next_.filtered_groups) == ((4, 5), 0)


async def test_too_many_filtered_groups_in_a_row_end_the_run_and_are_reported_once(send):
    actor = batcher(keeps=has_signal, dynamic_sampling=True, max_filtered_batches=2)
    emitted = await send(actor, published(0), *(one for number in range(6) for one in rewarded(number, 1.0, 1.0)))
    (used_up,) = (message for message in emitted if isinstance(message, FilterExhausted))
    assert emitted.index(used_up) == 8
    assert "dropped 4 groups since the last batch: all the rewards of each were equal" in used_up.reason
    assert "raise batcher.max_filtered_batches" in used_up.reason


async def test_a_batch_formed_begins_the_count_of_filtered_groups_anew(send):
    actor = batcher(keeps=has_signal, dynamic_sampling=True, max_filtered_batches=2, batch_size=1)
    same, other = [1.0, 1.0], [0.0, 1.0]
    emitted = await send(
        actor,
        published(0),
        *rewarded(0, *same),
        *rewarded(1, *other),
        published(1),
        *rewarded(2, *same),
        *rewarded(3, *other),
    )
    assert not any(isinstance(message, FilterExhausted) for message in emitted)


async def test_with_dynamic_batches_what_is_left_of_a_batch_is_trained(send):
    actor = batcher(keeps=has_signal, dynamic_sampling=True, dynamic_batch=True, batch_size=3)
    emitted = await send(actor, published(0), *rewarded(0, 1.0, 1.0), *rewarded(1, 0.0, 1.0), *rewarded(2, 1.0, 1.0))
    assert emitted[-1].group_numbers() == (1,)
