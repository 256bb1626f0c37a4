"""Draws by measured difficulty: pools, sources that end, and the task source as a fold over scores."""

from __future__ import annotations

import msgspec
import pytest
from support.samples import SAMPLING, batch

from areal_actors.core.curriculum_settings import CurriculumSettings
from areal_actors.core.values import Task
from areal_actors.messages import CapacityGranted, EpisodeAbandoned, EpisodeScored, PoolsMeasured, SourcesChanged
from areal_actors.tasks.curriculum.pools import TaskPools
from areal_actors.tasks.curriculum.schedule import WINDOW, Schedule
from areal_actors.tasks.task_source import DrawnState, TaskSource

SETTINGS = CurriculumSettings(retire_after=2, return_after=5)


class Numbered:
    def __init__(self, count=20):
        self.count = count

    def __len__(self):
        return self.count

    def task(self, number):
        return Task(id=f"task-{number}", data={"question": f"{number}?"})


def pools(count=4, **changes):
    return TaskPools(count, msgspec.structs.replace(SETTINGS, **changes), "0")


def test_every_task_is_drawn_once_before_any_is_measured():
    drawn = pools()
    assert [drawn.draw(number) for number in range(4)] == [0, 1, 2, 3]
    assert drawn.sizes() == {"new": 0, "mixed": 0, "solved": 0, "unsolved": 0, "retired": 0, "running": 4}


def test_what_is_always_solved_is_retired_and_a_failure_brings_it_back_to_the_start():
    drawn = pools(count=1)
    for number, (rate, pool) in enumerate([(1.0, "solved"), (0.5, "mixed"), (1.0, "solved"), (1.0, "retired")]):
        assert drawn.draw(number) == 0
        drawn.record(0, rate)
        assert drawn.sizes()[pool] == 1, number


def test_a_retired_task_is_drawn_only_if_no_other_can_be():
    drawn = pools(count=2, retire_after=1)
    for place, rate in ((0, 1.0), (1, 0.5)):
        drawn.draw(place)
        drawn.record(place, rate)
    for number in range(2, 30):
        assert drawn.draw(number) == 1
        drawn.record(1, 0.5)
    assert (drawn.draw(30), drawn.draw(31)) == (1, 0)


def test_what_was_never_solved_returns_after_some_draws():
    drawn = pools(count=2)
    for place, rate in ((0, 0.0), (1, 0.5)):
        drawn.draw(place)
        drawn.record(place, rate)
    places = []
    for number in range(2, 40):
        places.append(drawn.draw(number))
        drawn.record(places[-1], 0.5 if places[-1] else 0.0)
    assert 0 not in places[:3]
    assert 2 <= places.count(0) <= 38 / SETTINGS.return_after
    assert drawn.state.returned == places.count(0)


def source(until=None, curriculum=SETTINGS, sources=None, group_size=2):
    sources = sources or {"": Numbered()}
    weights = dict.fromkeys(sources, 1.0)
    tasks = Schedule(sources, weights, seed=3, group_size=group_size, until=until, curriculum=curriculum)
    return TaskSource(tasks, group_size=group_size, sampling=SAMPLING, retries=0)


def scored(work, reward):
    return EpisodeScored(work=work, session="s", reward=reward)


async def play(send, actor, groups, reward_of, *, first=0):
    """Grants and scores groups one after the other; returns all that the source emitted."""
    emitted = []
    for number in range(first, first + groups):
        started = await send(actor, CapacityGranted(first_group=number, groups=1, weight_version=0))
        emitted += started
        for work in started:
            reward = reward_of(work)
            lost = EpisodeAbandoned(work=work, reason="agent", detail="")
            emitted += await send(actor, lost if reward is None else scored(work, reward))
    return emitted


def difficulty(work):
    """Tasks below 10 are always solved, those above 14 never, others by one member."""
    number = int(work.task.id.partition("-")[2])
    return 1.0 if number < 10 else 0.0 if number > 14 else float(work.episode.endswith(".0"))


async def test_a_restored_source_draws_what_the_first_would_have_drawn(send):
    whole, first, second = source(), source(), source()
    expected = await play(send, whole, 60, difficulty)
    before = await play(send, first, 25, difficulty)
    second.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(first.snapshot()), type=DrawnState))
    assert before + await play(send, second, 35, difficulty, first=25) == expected
    drawn = [work.task.id for work in expected if work.episode.endswith(".0")]
    mixed = [f"task-{number}" for number in range(10, 15)]
    assert sum(drawn[30:].count(name) for name in mixed) > 14, "those with a signal are drawn most"
    assert whole.schedule.sizes()[""]["retired"] >= 5


async def test_a_batch_reports_the_pools(send):
    actor = source()
    await play(send, actor, 6, difficulty)
    (measured,) = await send(actor, batch(0, 0, 1, members=2))
    assert isinstance(measured, PoolsMeasured)
    assert (measured.step, sum(measured.pools[""].values())) == (1, 20)
    assert set(actor.schedule.groups) <= {2, 3, 4, 5}


async def test_an_episode_without_a_score_counts_neither_way(send):
    actor = source()
    await play(send, actor, 1, lambda work: None if work.episode.endswith(".0") else 1.0)
    assert actor.schedule.sizes()[""]["solved"] == 1
    await play(send, actor, 1, lambda _: None, first=1)
    assert actor.schedule.sizes()[""]["mixed"] == 1


@pytest.mark.parametrize("seed_of_scores", range(3))
async def test_a_source_ends_at_its_success_rate_and_all_return_when_every_one_has(send, seed_of_scores):
    sources = {"easy": Numbered(500), "hard": Numbered(500)}
    actor = source(until={"easy": 0.9, "hard": 0.5}, curriculum=None, sources=sources)
    emitted = await play(
        send, actor, 6 * WINDOW, lambda work: float(work.task.source == "easy" or work.episode[-1] == "0")
    )
    changes = [event for event in emitted if isinstance(event, SourcesChanged)]
    assert {change.source for change in changes} == {"easy", "hard"}
    assert list(changes[0].weights) == [name for name in sources if name != changes[0].source]
    assert changes[1].weights == {"easy": 1.0, "hard": 1.0}
    between = range(changes[0].first_group, changes[1].first_group)
    assert {actor.schedule.order.draw(number).source for number in between} <= set(changes[0].weights)
