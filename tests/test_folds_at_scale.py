"""The folds that every episode meets do the same with ten thousand groups in flight as with ten: nothing in them visits
every group."""

from __future__ import annotations

import pytest

from areal_actors.batching.assembler import BatchAssembler, BatcherConfig, PartialGroup, TrajectoryInfo
from areal_actors.staleness.ledger import Ledger


class Untouched(dict):
    """A dict whose entries are reached by key only."""

    def refuse(self, *_):
        raise AssertionError("an event has visited every group")

    __iter__ = items = values = keys = copy = __or__ = refuse


class UntouchedSet(set):
    """A set without a copy."""

    def refuse(self, *_):
        raise AssertionError("an event has visited every group")

    __iter__ = __or__ = __sub__ = __and__ = copy = union = refuse


def member(episode, version=0):
    return TrajectoryInfo(episode=episode, sequence=1, oldest_version=version, newest_version=version, tokens=1)


def test_the_ledger_visits_only_the_group_of_an_episode():
    ledger = Ledger(group_size=2, weight_version=0).grant(100)
    ledger.running, ledger.kept, ledger.complete = Untouched(ledger.running), UntouchedSet(), UntouchedSet({7})
    ledger.episode_ended(3, "3.0", exported=True).episode_ended(3, "3.1", exported=True).episode_ended(
        4, "4.0", exported=False
    )
    ledger.grant(2).group_dropped(7)
    assert ledger.free_groups(2, 1000, 100, 100) == (198, "none")


@pytest.mark.parametrize("policy", ["mask", "drop", "keep", "wait"])
def test_the_assembler_visits_only_the_group_of_an_episode(policy):
    config, assembler = BatcherConfig(exit_policy=policy), BatchAssembler(group_size=2, weight_version=0)
    for number in range(50):
        assembler.add_trajectory(number, member(f"{number}.0")).add_trajectory(number, member(f"{number}.1"))
    assert assembler.to_drop(config, 1) == {}
    open_groups = {
        number: PartialGroup(number=number, members={f"{number}.0": member(f"{number}.0")}) for number in range(50, 99)
    }
    assembler.open, assembler.complete = Untouched(open_groups), Untouched(assembler.complete)
    assembler.add_trajectory(60, member("60.1"))
    assert assembler.to_drop(config, 1) == {}
    assert assembler.without({}).next_batch(1000) == []
