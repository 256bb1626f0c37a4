from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_actors.staleness.ledger import Ledger, StalenessGateConfig

CONFIG = StalenessGateConfig(max_staleness=1, max_concurrent=100)


def free(ledger: Ledger, *, config=CONFIG, batch_size=2, steps=100):
    return ledger.free_groups(config.max_staleness, config.most_concurrent(batch_size), batch_size, steps)


@pytest.mark.parametrize(
    ("max_staleness", "max_concurrent", "steps", "groups", "bound"),
    [
        (1, 100, 100, 4, "none"),
        (2, 100, 100, 6, "none"),
        (2, 5, 100, 5, "none"),
        (2, 100, 2, 4, "none"),
    ],
)
def test_with_the_first_weights_the_smallest_bound_limits_the_start(
    max_staleness, max_concurrent, steps, groups, bound
):
    config = StalenessGateConfig(max_staleness=max_staleness, max_concurrent=max_concurrent)
    assert free(Ledger(group_size=2, weight_version=0), config=config, steps=steps) == (groups, bound)


def test_without_weights_nothing_starts():
    assert free(Ledger(group_size=2)) == (0, "weights")


def test_synchronous_training_waits_until_every_live_worker_has_the_version():
    config = StalenessGateConfig(max_staleness=0)
    ledger = Ledger(group_size=1).weights_published(0)
    assert free(ledger, config=config) == (0, "weights")
    ledger = ledger.weights_loaded("a", 0).weights_loaded("b", -1)
    assert free(ledger, config=config) == (0, "weights")
    assert free(ledger.weights_loaded("b", 0), config=config) == (2, "none")
    assert free(ledger.worker_gone("b"), config=config) == (2, "none")
    assert free(ledger.worker_gone("a").worker_gone("b"), config=config) == (0, "weights")


@pytest.mark.parametrize(
    ("config", "steps", "bound"),
    [
        (StalenessGateConfig(max_staleness=1, max_concurrent=100), 100, "staleness"),
        (StalenessGateConfig(max_staleness=5, max_concurrent=4), 100, "concurrency"),
        (StalenessGateConfig(max_staleness=5, max_concurrent=100), 2, "steps"),
    ],
)
def test_the_bound_that_binds_is_named(config, steps, bound):
    ledger = Ledger(group_size=2, weight_version=0).grant(4)
    assert free(ledger, config=config, steps=steps) == (0, bound)


def test_surplus_groups_start_until_the_last_batch_is_formed():
    ledger = Ledger(group_size=1, weight_version=1).grant(2)
    assert ledger.free_groups(2, 100, 2, 2) == (0, "steps")
    assert ledger.free_groups(2, 100, 2, 2, surplus=3) == (3, "none")
    assert ledger.free_groups(1, 100, 2, 2, surplus=3) == (2, "none"), "never above the bound"
    for number in range(2):
        ledger = ledger.episode_ended(number, f"{number}.0", exported=True)
    ledger = ledger.batch_formed(frozenset({0, 1}))
    assert ledger.free_groups(2, 100, 2, 2, surplus=3) == (0, "steps")
    assert ledger.weights_published(2).free_groups(2, 100, 2, 2, surplus=3) == (0, "steps")


def test_a_group_is_complete_when_all_its_episodes_have_ended_and_gone_when_all_were_abandoned():
    ledger = Ledger(group_size=2, weight_version=0).grant(2)
    ledger = ledger.episode_ended(0, "0.0", exported=True).episode_ended(0, "0.1", exported=False)
    ledger = ledger.episode_ended(1, "1.0", exported=False).episode_ended(1, "1.1", exported=False)
    assert (set(ledger.running), ledger.complete, ledger.kept) == (set(), {0}, set())
    assert ledger.ahead() == 1


def test_an_episode_that_ends_twice_counts_once():
    ledger = Ledger(group_size=2, weight_version=0).grant(1)
    once = copy.deepcopy(ledger.episode_ended(0, "0.0", exported=True))
    assert ledger.episode_ended(0, "0.0", exported=False) == once
    assert ledger.episode_ended(7, "7.0", exported=True) == once


def test_only_what_was_in_the_batch_is_counted_as_trained():
    ledger = Ledger(group_size=1, weight_version=0).grant(3)
    for number in range(3):
        ledger = ledger.episode_ended(number, f"{number}.0", exported=True)
    ledger = ledger.batch_formed(frozenset({0, 2}))
    assert (ledger.complete, ledger.in_batch, ledger.ahead()) == ({1}, {0, 2}, 3)
    ledger = ledger.weights_published(1)
    assert (ledger.trained, ledger.in_batch, ledger.ahead()) == (2, set(), 1)
    once = copy.deepcopy(ledger)
    assert ledger.weights_published(1).weights_published(0) == once


class Life:
    """A gate's life with a trainer that takes any batch of complete groups, events in any order, many of them twice."""

    def __init__(self, seed, group_size, batch_size, max_staleness, steps):
        self.dice = random.Random(seed)
        self.batch_size, self.steps = batch_size, steps
        self.config = StalenessGateConfig(max_staleness=max_staleness, max_concurrent=self.dice.randint(1, 12))
        self.ledger = Ledger(group_size=group_size, weight_version=0)
        self.open: list[tuple[int, str]] = []
        self.ended: list[tuple[int, str, bool]] = []
        self.exported: set[int] = set()
        self.back: list[int] = []

    def run(self):
        while self.ledger.weight_version < self.steps:
            self.grant()
            assert self.open or len(self.ledger.complete) >= self.batch_size, "stuck"
            move = self.dice.choice([self.end, self.end, self.end_again, self.drop, self.train])
            move()
        return self

    def grant(self):
        most = self.config.most_concurrent(self.batch_size)
        groups, bound = self.ledger.free_groups(self.config.max_staleness, most, self.batch_size, self.steps)
        assert (groups > 0) == (bound == "none")
        first = self.ledger.granted
        self.ledger = self.ledger.grant(groups)
        self.open += [
            (number, f"{number}.{member}")
            for number in range(first, first + groups)
            for member in range(self.ledger.group_size)
        ]
        assert len(self.ledger.running) <= self.config.max_concurrent
        assert self.ledger.ahead() <= (self.config.max_staleness + 1) * self.batch_size
        assert self.ledger.trained + self.ledger.ahead() <= self.steps * self.batch_size

    def end(self):
        if not self.open:
            return
        number, episode = self.open.pop(self.dice.randrange(len(self.open)))
        exported = self.dice.random() < 0.7
        self.ended.append((number, episode, exported))
        if exported:
            self.exported.add(number)
        running = number in self.ledger.running
        self.ledger = self.ledger.episode_ended(number, episode, exported=exported)
        if running and number not in self.ledger.running and number not in self.ledger.complete:
            self.back.append(number)

    def end_again(self):
        if self.ended:
            number, episode, _ = self.dice.choice(self.ended)
            before = copy.deepcopy(self.ledger)
            self.ledger = self.ledger.episode_ended(number, episode, exported=self.dice.random() < 0.5)
            assert self.ledger == before

    def drop(self):
        if self.ledger.complete and self.dice.random() < 0.2:
            number = self.dice.choice(sorted(self.ledger.complete))
            self.ledger = self.ledger.group_dropped(number).group_dropped(number)
            self.back.append(number)

    def train(self):
        if len(self.ledger.complete) >= self.batch_size:
            groups = frozenset(self.dice.sample(sorted(self.ledger.complete), self.batch_size))
            self.ledger = self.ledger.batch_formed(groups).weights_published(self.ledger.weight_version + 1)
            self.back += groups


@given(
    seed=st.integers(0, 2**32),
    group_size=st.integers(1, 3),
    batch_size=st.integers(1, 3),
    max_staleness=st.integers(1, 3),
    steps=st.integers(1, 6),
)
def test_every_slot_comes_back_once_and_no_bound_is_exceeded_whatever_the_order(
    seed, group_size, batch_size, max_staleness, steps
):
    life = Life(seed, group_size, batch_size, max_staleness, steps).run()
    left = {*life.ledger.running, *life.ledger.complete, *life.ledger.in_batch}
    assert sorted([*life.back, *left]) == list(range(life.ledger.granted))
    assert life.ledger.trained == steps * batch_size
