from __future__ import annotations

import copy
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.samples import interaction, trajectory

from areal_actors.batching.assembler import BatchAssembler, BatcherConfig, TrajectoryInfo, group_filter, has_signal
from areal_actors.core.errors import RecipeError
from areal_actors.sequences.credit import Credit


def member(episode, oldest=0, newest=None, tokens=10, rewards=(1.0,)):
    newest = oldest if newest is None else newest
    return TrajectoryInfo(
        episode=episode, sequence=1, oldest_version=oldest, newest_version=newest, tokens=tokens, rewards=rewards
    )


def with_groups(*ages, weight_version=0):
    """Groups of one, complete, each of this age or (oldest, newest)."""
    assembly = BatchAssembler(group_size=1, weight_version=weight_version)
    for number, age in enumerate(ages):
        oldest, newest = age if isinstance(age, tuple) else (age, age)
        assembly = assembly.add_trajectory(number, member(f"{number}.0", oldest, newest))
    return assembly


def numbers(groups):
    return [group.number for group in groups]


def test_a_trajectory_is_known_by_its_oldest_and_newest_token():
    turns = (interaction("a", "abc", 3, 3, 4), interaction("b", "de", 2, 5, parent="a"))
    known = TrajectoryInfo.of(trajectory("7.1", *turns), 42)
    assert (known.episode, known.sequence, known.oldest_version, known.newest_version, known.tokens) == (
        "7.1",
        42,
        2,
        5,
        5,
    )


def test_a_group_is_complete_when_every_episode_has_ended_either_way():
    assembly = BatchAssembler(group_size=3).add_trajectory(0, member("0.0")).record_lost_episode(0, "0.1")
    assert not assembly.complete
    assembly = assembly.add_trajectory(0, member("0.2"))
    assert list(assembly.complete[0].members) == ["0.0", "0.2"]
    assert not assembly.open


def test_a_group_that_lost_every_episode_is_forgotten():
    assembly = BatchAssembler(group_size=2).record_lost_episode(0, "0.0").record_lost_episode(0, "0.1")
    assert (assembly.open, assembly.complete, assembly.finished_below) == ({}, {}, 1)


@pytest.mark.parametrize("again", ["exported", "lost"])
def test_an_episode_that_ends_again_changes_nothing(again):
    def end(assembly):
        return (
            assembly.add_trajectory(0, member("0.0", tokens=99))
            if again == "exported"
            else assembly.record_lost_episode(0, "0.0")
        )

    def changes_nothing(assembly):
        before = copy.deepcopy(assembly)
        return end(assembly) == before

    assembly = BatchAssembler(group_size=2).add_trajectory(0, member("0.0"))
    assert changes_nothing(assembly)
    assert changes_nothing(assembly.record_lost_episode(0, "0.1"))
    assert changes_nothing(assembly.weights_published(0).form_batch(list(assembly.complete.values())))


def test_the_oldest_groups_leave_first_and_of_equals_the_first_granted():
    assert numbers(with_groups(3, 1, 2, 1, weight_version=3).next_batch(3)) == [1, 3, 2]


def test_there_is_one_batch_per_weight_version():
    assembly = with_groups(0, 0, 0, 0)
    assembly = assembly.form_batch(assembly.next_batch(2))
    assert assembly.next_batch(2) == []
    assert numbers(assembly.weights_published(1).next_batch(2)) == [2, 3]


def test_there_is_no_batch_before_the_first_weights_nor_with_too_few_groups():
    assert with_groups(0, 0, weight_version=-1).next_batch(2) == []
    assert with_groups(0, 0).next_batch(3) == []


@pytest.mark.parametrize(
    ("policy", "refused"),
    [("keep", []), ("mask", [0]), ("wait", [0]), ("drop", [0, 1])],
)
def test_what_the_exit_policy_refuses(policy, refused):
    """At version 5 and bound 2, group 0 is all too old, group 1 in part, group 2 just not."""
    assembly = with_groups((1, 2), (2, 3), (3, 3), weight_version=5)
    assert assembly.to_drop(BatcherConfig(exit_policy=policy), 2) == dict.fromkeys(refused, "stale")


@pytest.mark.parametrize(
    ("complete", "running", "batch"),
    [
        ([5, 5], {}, [0, 1]),
        ([5, 5], {9: 4}, [0, 1]),
        ([5, 5], {9: 3}, []),
        ([3, 3], {9: 3}, [0, 1]),
        ([5, 5], {7: 4, 8: 4, 9: 4}, []),
        ([4, 4], {7: 4, 8: 4, 9: 4}, [0, 1]),
        ([5, 5, 5, 5], {8: 4, 9: 5}, [0, 1]),
    ],
    ids=[
        "none runs",
        "may run on",
        "as old as the bound",
        "no room",
        "too many for the next",
        "none is younger",
        "room later",
    ],
)
def test_a_batch_waits_for_groups_that_would_become_too_old_by_it(complete, running, batch):
    """At version 5 and bound 2 with batches of two; a group of version 3 has to be in this one, one of version 4 in the
    next."""
    assembly = with_groups(*complete, weight_version=5)
    for number, version in running.items():
        assembly = assembly.record_grant(number, 1, version)
    assert numbers(assembly.next_batch(2, max_staleness=2)) == batch
    for number in running:
        assembly = assembly.record_lost_episode(number, f"{number}.0")
    assert not assembly.granted
    assert assembly.next_batch(2, max_staleness=2)


@pytest.mark.parametrize(("incomplete_groups", "refused"), [("train_partial", []), ("drop", [0])])
def test_what_becomes_of_a_group_that_lost_a_sample(incomplete_groups, refused):
    assembly = (
        BatchAssembler(group_size=2, weight_version=0).add_trajectory(0, member("0.0")).record_lost_episode(0, "0.1")
    )
    assert assembly.to_drop(BatcherConfig(incomplete_groups=incomplete_groups), 2) == dict.fromkeys(
        refused, "incomplete group"
    )


@pytest.mark.parametrize(
    ("rewards", "refused"),
    [
        ([(1.0,), (1.0,)], True),
        ([(0.0,), (1.0,)], False),
        ([(0.5, 0.5), (0.5,)], True),
        ([(0.5, 0.0), (0.5,)], False),
        ([(1.0,), None], True),
    ],
)
def test_a_group_whose_rows_have_equal_rewards_has_no_signal(rewards, refused):
    """An episode may become several rows; None is an episode that was lost."""
    assembly = BatchAssembler(group_size=2, weight_version=0)
    for place, rewarded in enumerate(rewards):
        assembly = (
            assembly.record_lost_episode(0, f"0.{place}")
            if rewarded is None
            else assembly.add_trajectory(0, member(f"0.{place}", rewards=rewarded))
        )
    assert assembly.to_drop(BatcherConfig(), 2, has_signal) == ({0: "filtered"} if refused else {})


def test_a_trajectory_counts_once_with_the_mean_of_its_calls_or_once_for_each_of_them():
    turns = (interaction("a", "abc"), interaction("b", "de", parent="a"))
    turns = tuple(msgspec.structs.replace(turn, reward=reward) for turn, reward in zip(turns, (0.25, 1.0), strict=True))
    one = trajectory("7.1", *turns, reward=1.0)
    assert TrajectoryInfo.of(one, 1).rewards == (0.625,)
    for style in ("concat", "individual"):
        assert TrajectoryInfo.of(one, 1, Credit(discount=0.5, style=style)).rewards == (0.875,)
        assert TrajectoryInfo.of(one, 1, Credit(discount=0.5, style=style, baseline_over="calls")).rewards == (
            0.75,
            1.0,
        )


def test_a_filter_of_the_users_is_asked_for_true_or_false(tmp_path):
    (tmp_path / "filters.py").write_text(
        "def solved(rewards):\n    return sum(rewards) > 1\ndef vague(rewards):\n    return 0\nthing = 3\n"
        "import pytest\ndef skips(rewards):\n    pytest.skip('no signal')\n"
    )
    keeps = group_filter(BatcherConfig(filter="filters.py:solved"), tmp_path)
    assert (keeps((1.0, 1.0)), keeps((1.0, 0.0))) == (True, False)
    assert group_filter(BatcherConfig(), tmp_path) is None
    both = group_filter(BatcherConfig(filter="filters.py:solved", dynamic_sampling=True), tmp_path)
    assert [both(rewards) for rewards in ((1.0, 1.0), (1.0, 0.5), (1.0, 0.0))] == [False, True, False]
    with pytest.raises(
        RecipeError, match=r"filters.py:vague\(\(1.0,\)\) returned 0; return True to train the group, or False"
    ):
        group_filter(BatcherConfig(filter="filters.py:vague"), tmp_path)((1.0,))
    with pytest.raises(RecipeError, match=r"filters.py:skips\(\(1.0,\)\) raised Skipped: no signal at filters.py:\d+"):
        group_filter(BatcherConfig(filter="filters.py:skips"), tmp_path)((1.0,))
    with pytest.raises(RecipeError, match=r"`filters.py:thing` is not a function; write `def keep\(rewards\) -> bool`"):
        group_filter(BatcherConfig(filter="filters.py:thing"), tmp_path)


def test_a_dynamic_batch_counts_what_the_filter_dropped_but_is_never_empty():
    def filtered(*groups):
        return with_groups(*[0] * 6).without(dict.fromkeys(groups, "filtered"))

    assert filtered(0, 1, 2, 3).next_batch(3) == []
    assert numbers(filtered(0, 1, 2, 3).next_batch(3, dynamic=True)) == [4, 5]
    assert filtered(*range(6)).next_batch(3, dynamic=True) == []
    assert with_groups(0, 0).next_batch(3, dynamic=True) == []
    left = filtered(0, 1, 2, 3)
    assert (left.filtered, left.form_batch(left.next_batch(3, dynamic=True)).filtered) == (4, 0)


def test_dropped_tokens_are_counted():
    assembly = with_groups(0, 0, weight_version=9)
    assembly = assembly.without(assembly.to_drop(BatcherConfig(exit_policy="drop"), 1))
    assert (assembly.dropped.tokens, assembly.dropped.trajectories, assembly.trained.tokens) == (20, 2, 0)


@given(
    seed=st.integers(0, 2**32),
    group_size=st.integers(1, 3),
    batch_size=st.integers(1, 3),
    policy=st.sampled_from(["mask", "keep", "drop"]),
    incomplete_groups=st.sampled_from(["train_partial", "drop"]),
    filtering=st.booleans(),
    dynamic=st.booleans(),
)
def test_groups_leave_whole_and_once_whatever_the_order_and_the_repetitions(
    seed, group_size, batch_size, policy, incomplete_groups, filtering, dynamic
):
    dice = random.Random(seed)
    config, bound = BatcherConfig(exit_policy=policy, incomplete_groups=incomplete_groups), 1
    ends = [(number, f"{number}.{place}") for number in range(12) for place in range(group_size)] * 2
    dice.shuffle(ends)
    assembly = BatchAssembler(group_size=group_size, weight_version=0)
    ended: dict[str, bool] = {}
    gone: list[int] = []
    for number, episode in ends:
        lost = dice.random() < 0.3
        if episode not in ended:
            ended[episode] = not lost
        oldest = max(assembly.weight_version - dice.randrange(4), 0)
        assembly = (
            assembly.record_lost_episode(number, episode)
            if lost
            else assembly.add_trajectory(
                number, member(episode, oldest, dice.randint(oldest, oldest + 1), rewards=(float(dice.random() < 0.5),))
            )
        )
        refusals = assembly.to_drop(config, bound, has_signal if filtering else None)
        refused = [assembly.complete[number] for number in refusals]
        assembly = assembly.without(refusals)
        batch = assembly.next_batch(batch_size, dynamic=dynamic)
        for group in [*refused, *batch]:
            named = [f"{group.number}.{place}" for place in range(group_size)]
            assert sorted(group.members) == [name for name in named if ended[name]]
        if batch:
            assert len(batch) == batch_size or (dynamic and filtering and len(batch) + assembly.filtered >= batch_size)
            assert all(len(set(group.rewards())) > 1 for group in batch) or not filtering
            ages = [(group.oldest_version(), group.number) for group in batch]
            rest = [
                (group.oldest_version(), group.number)
                for number, group in assembly.complete.items()
                if group not in batch
            ]
            assert ages == sorted(ages)
            assert all(ages[-1] < age for age in rest)
            if policy == "drop":
                assert all(group.oldest_version() >= assembly.weight_version - bound for group in batch)
            if policy == "mask":
                assert all(group.newest_version() >= assembly.weight_version - bound for group in batch)
            if incomplete_groups == "drop":
                assert all(len(group.members) == group_size for group in batch)
            assembly = assembly.form_batch(batch).weights_published(assembly.weight_version + 1)
        gone += numbers([*refused, *batch])
    nothing_left = {
        number for number in range(12) if not any(ended[f"{number}.{place}"] for place in range(group_size))
    }
    assert sorted([*gone, *assembly.complete, *nothing_left]) == list(range(12))
    assert not assembly.open
    assert assembly.finished_below == 12
    assert not assembly.finished
    waiting = sum(len(group.members) for group in assembly.complete.values())
    assert assembly.trained.trajectories + assembly.dropped.trajectories + waiting == sum(ended.values())
