"""Draws from a mixture: shares, order, and changes of weights."""

from __future__ import annotations

from collections import Counter

import pytest
from support.samples import SAMPLING

from areal_actors.core.values import Task
from areal_actors.messages import CapacityGranted
from areal_actors.tasks.mixture.mixed_tasks import MixedTasks, take_in_turn
from areal_actors.tasks.mixture.source_order import SourceOrder
from areal_actors.tasks.task_source import TaskSource

WEIGHTS = {"sums": 2.0, "tools": 1.0, "game": 0.5}


class Numbered:
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 10

    def task(self, number):
        return Task(id=f"{self.name}-{number}", data={})


def counts(order, draws):
    return Counter(order.draw(number).source for number in range(draws))


@pytest.mark.parametrize("seed", range(5))
def test_after_any_number_of_draws_each_source_has_its_share_to_within_two(seed):
    order, total = SourceOrder(WEIGHTS, seed), sum(WEIGHTS.values())
    for draws in range(1, 300):
        drawn = counts(order, draws)
        assert all(abs(drawn[name] - draws * weight / total) < 2 for name, weight in WEIGHTS.items())


def test_a_draw_depends_on_seed_weights_and_number_alone():
    order = SourceOrder(WEIGHTS, 7)
    drawn = [order.draw(number) for number in range(60)]
    assert SourceOrder(WEIGHTS, 7).draw(59) == drawn[59]
    assert [SourceOrder(WEIGHTS, 8).draw(number).source for number in range(12)] != [draw.source for draw in drawn[:12]]


def test_a_source_is_drawn_in_an_order_of_its_own():
    order = SourceOrder(WEIGHTS, 0)
    numbers = {name: [] for name in WEIGHTS}
    for number in range(40):
        draw = order.draw(number)
        numbers[draw.source].append(draw.number)
    assert all(own == list(range(len(own))) for own in numbers.values())


def test_the_order_is_the_same_in_every_version():
    order = SourceOrder(WEIGHTS, 0)
    drawn = " ".join(order.draw(number).source for number in range(14))
    assert drawn == "sums tools sums sums tools sums game sums tools sums sums tools sums game"


def test_weights_change_from_a_draw_on_and_earlier_draws_stay():
    order, plain = SourceOrder(WEIGHTS, 3), SourceOrder(WEIGHTS, 3)
    before = [plain.draw(number) for number in range(21)]
    order.change(21, {"tools": 1.0, "game": 1.0})
    assert [order.draw(number) for number in range(21)] == before
    later = Counter(order.draw(number).source for number in range(21, 41))
    assert later["sums"] == 0
    assert abs(later["tools"] - later["game"]) <= 2
    plain.draw(90)
    plain.change(21, {"tools": 1.0, "game": 1.0})
    assert [plain.draw(number) for number in range(41)] == [order.draw(number) for number in range(41)]


def test_tasks_have_the_name_of_their_source_and_ids_of_their_own():
    tasks = MixedTasks({name: Numbered("rows") for name in WEIGHTS}, SourceOrder(WEIGHTS, 0))
    drawn = [tasks.task(number) for number in range(14)]
    assert {task.source for task in drawn} == set(WEIGHTS)
    assert len({task.id for task in drawn}) == len(drawn)
    assert all(task.id.startswith(f"{task.source}/rows-") for task in drawn)


def test_held_out_tasks_are_taken_in_turn_until_every_source_has_none_left():
    held_out = {name: [Numbered(name).task(number) for number in range(count)] for name, count in (("a", 3), ("b", 1))}
    assert [task.id for task in take_in_turn(held_out)] == ["a-0", "b-0", "a-1", "a-2"]


async def test_every_episode_of_a_group_is_of_its_source_and_sampled_as_that_one_is(send):
    short = type(SAMPLING)(max_tokens=3)
    tasks = MixedTasks({name: Numbered(name) for name in WEIGHTS}, SourceOrder(WEIGHTS, 0))
    actor = TaskSource(tasks, group_size=2, sampling=SAMPLING, retries=0, sampling_by_source={"game": short})
    started = await send(actor, CapacityGranted(first_group=0, groups=14, weight_version=0))
    by_group = {}
    for work in started:
        by_group.setdefault(work.group, set()).add(work.task.source)
        assert work.sampling == (short if work.task.source == "game" else SAMPLING)
    assert all(len(sources) == 1 for sources in by_group.values())
