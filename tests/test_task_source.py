from __future__ import annotations

import random

from support.samples import SAMPLING, abandoned, batch, work

from areal_actors.core.values import Task
from areal_actors.messages import CapacityGranted, EpisodeScored, RunResumed, RunStopping, TrajectoryDropped
from areal_actors.tasks.datasets import open_dataset
from areal_actors.tasks.task_source import TaskSource


class Numbered:
    def __len__(self):
        return 10

    def task(self, number):
        return Task(id=f"task-{number}", data={"question": f"{number}?"})


GROUP_3 = CapacityGranted(first_group=3, groups=1, weight_version=0)


def source(retries=1, surplus_after=None):
    return TaskSource(Numbered(), group_size=2, sampling=SAMPLING, retries=retries, surplus_after=surplus_after)


async def begun(send):
    """A source whose group 3 is running."""
    actor = source()
    await send(actor, GROUP_3)
    return actor


async def test_a_grant_becomes_every_member_of_its_groups(send):
    emitted = await send(source(), CapacityGranted(first_group=3, groups=2, weight_version=0))
    assert [(run.episode, run.group, run.task.id, run.attempt, run.attempts_left) for run in emitted] == [
        ("3.0", "3", "task-3", 1, 1),
        ("3.1", "3", "task-3", 1, 1),
        ("4.0", "4", "task-4", 1, 1),
        ("4.1", "4", "task-4", 1, 1),
    ]


async def test_what_still_runs_when_the_last_batch_is_formed_is_surplus_and_not_tried_again(send):
    actor = source(surplus_after=1)
    await send(actor, CapacityGranted(first_group=3, groups=3, weight_version=0), abandoned("4.0", attempts_left=1))
    assert await send(actor, batch(0, 3, members=2)) == []
    surplus = await send(actor, batch(1, 5, members=2))
    assert [(gone.work.episode, gone.work.attempt, gone.work.attempts_left, gone.reason) for gone in surplus] == [
        ("4.0", 2, 0, "surplus"),
        ("4.1", 1, 0, "surplus"),
    ]
    assert await send(actor, *surplus, abandoned("4.0", attempt=1, attempts_left=1)) == []
    assert not actor.attempts.latest
    again = source(surplus_after=1)
    again.restore(actor.snapshot())
    late = await send(again, CapacityGranted(first_group=6, groups=1, weight_version=1))
    assert [(gone.work.episode, gone.reason) for gone in late] == [("6.0", "surplus"), ("6.1", "surplus")]


async def test_a_scored_episode_that_was_lost_after_the_last_batch_is_not_tried_again(send):
    actor = source(surplus_after=1)
    await send(actor, GROUP_3, EpisodeScored(work=work("3.0", attempts_left=1), session="s", reward=1.0))
    assert [gone.work.episode for gone in await send(actor, batch(1, 2, members=2))] == ["3.1"]
    (gone,) = await send(actor, abandoned("3.0", attempts_left=1))
    assert (gone.work.episode, gone.work.attempts_left, gone.reason) == ("3.0", 0, "surplus")


async def test_without_surplus_the_last_batch_ends_nothing(send):
    actor = await begun(send)
    assert await send(actor, batch(99, 2, members=2)) == []


async def test_a_lost_attempt_is_tried_again_until_none_is_left(send):
    actor = await begun(send)
    (again,) = await send(actor, abandoned("3.0", attempts_left=1))
    assert (again.episode, again.attempt, again.attempts_left) == ("3.0", 2, 0)
    assert await send(actor, abandoned("3.0", attempt=2, attempts_left=0)) == []


async def test_an_attempt_reported_lost_by_two_actors_is_tried_again_once(send):
    lost = abandoned("3.0", attempts_left=2)
    assert len(await send(await begun(send), lost, lost)) == 1


async def test_what_is_lost_while_the_run_stops_is_tried_again_when_it_continues(send):
    actor = await begun(send)
    lost = abandoned("3.0", attempts_left=2)
    assert await send(actor, RunStopping(reason="ctrl-c"), lost, lost) == []
    resumed = RunResumed(recipe={}, reason="", folder="runs/mine")
    assert [(run.episode, run.attempt, run.attempts_left) for run in await send(actor, resumed, resumed)] == [
        ("3.0", 2, 1)
    ]
    assert [run.attempt for run in await send(actor, abandoned("3.0", attempt=2, attempts_left=1))] == [3]


def resumed(published, **queued):
    return RunResumed(
        recipe={},
        reason="",
        folder="",
        queued={f"3.{name[1:]}": attempt for name, attempt in queued.items()},
        published=published,
    )


async def test_what_the_queue_of_work_has_lost_is_published_again_when_the_run_continues(send):
    actor = source(retries=2)
    await send(actor, GROUP_3, abandoned("3.1", attempts_left=2))
    again = await send(actor, resumed({"task_source": 2}, _0=1))
    assert [(run.episode, run.group, run.attempt, run.attempts_left, run.task.id) for run in again] == [
        ("3.1", "3", 2, 1, "task-3")
    ]
    assert await send(actor, resumed({"task_source": 3}, _0=1, _1=2)) == []
    assert [run.episode for run in await send(actor, resumed({"task_source": 3}, _1=1))] == [
        "3.0",
        "3.1",
    ], "an earlier attempt is none"


async def test_what_is_published_anyway_or_follows_from_the_log_is_not_lost(send):
    actor = source()
    await send(actor, GROUP_3, EpisodeScored(work=work("3.0"), session="s", reward=1.0))
    assert await send(actor, resumed({"task_source": 0})) == [], (
        "granted after what it had acknowledged: handling that again publishes it"
    )
    assert await send(actor, RunResumed(recipe={}, reason="", folder="")) == [], "the queue was not inspected"
    assert [run.episode for run in await send(actor, resumed({"task_source": 1}))] == ["3.1"], "a score is in the log"


async def test_what_was_held_back_and_is_not_queued_is_published_once(send):
    actor = await begun(send)
    await send(actor, RunStopping(reason="ctrl-c"), abandoned("3.0", attempts_left=2))
    assert [(run.episode, run.attempt) for run in await send(actor, resumed({"task_source": 3}, _1=1))] == [("3.0", 2)]
    assert await send(actor, resumed({"task_source": 3}, _1=1)) == [], "published for the first of the two"


async def test_a_late_report_of_an_earlier_attempt_changes_nothing(send):
    actor = await begun(send)
    first, second, last = (abandoned("3.0", attempt=attempt, attempts_left=3 - attempt) for attempt in (1, 2, 3))
    assert [run.attempt for run in await send(actor, first, second, first, last)] == [2, 3]
    assert await send(actor, first, second) == []


async def test_held_out_episodes_are_tried_again_by_the_evaluator(send):
    assert await send(await begun(send), abandoned("evaluation-0-greedy.1", attempts_left=1, purpose="evaluate")) == []


async def test_what_has_permanently_ended_is_forgotten_and_never_tried_again(send):
    actor = source()
    await send(actor, CapacityGranted(first_group=0, groups=4, weight_version=0))
    await send(
        actor,
        abandoned("0.0", attempts_left=1),
        abandoned("0.0", attempt=2),
        TrajectoryDropped(episode="0.1", group="0", reason="stale"),
    )
    assert set(actor.attempts.latest) == {"1.0", "1.1", "2.0", "2.1", "3.0", "3.1"}
    await send(actor, abandoned("2.1", attempts_left=1), batch(0, 1, 2, members=2))
    assert set(actor.attempts.latest) == {"3.0", "3.1"}
    ended = [abandoned(f"{group}.{member}", attempts_left=1) for group in range(3) for member in range(2)]
    assert await send(actor, *ended) == []


async def test_it_remembers_no_more_of_a_long_run_than_what_is_under_way_and_a_second_life_knows_the_same(send):
    dice, log = random.Random(7), []
    for group in range(300):
        log.append(CapacityGranted(first_group=group, groups=1, weight_version=group))
        log += [abandoned(f"{group}.{member}", attempts_left=1) for member in range(2) if dice.random() < 0.4]
        if group >= 5:
            log.append(batch(group, group - 5, members=2))
    first, second = source(), source()
    largest = 0
    for event in log:
        await send(first, event)
        largest = max(largest, len(first.attempts.latest))
    assert largest == 2 * 6
    await send(second, *log)
    assert second.snapshot() == first.snapshot()


async def test_its_position_in_the_dataset_follows_from_the_received_grants(send):
    grants = [CapacityGranted(first_group=first, groups=5, weight_version=0) for first in (0, 5, 10)]
    first, second = source(), source()
    emitted = await send(first, *grants)
    await send(second, *grants[:2])
    assert await send(second, *grants[2:]) == emitted[20:]
    assert first.status() == second.status() == {"drawn": 15, "epochs": 1.5}


async def test_nothing_is_tried_again_while_the_run_stops(send):
    assert await send(await begun(send), RunStopping(reason="enough"), abandoned("3.0", attempts_left=1)) == []


async def test_killed_in_mid_epoch_and_started_again_it_draws_what_the_first_would_have(send, tmp_path):
    """A new process opens the file anew and replays the log from its start; repeated output of the first is
    discarded."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "{n}?", "answer": "{n}"}}\n' for n in range(7)))

    def fresh():
        train = open_dataset(str(tmp_path / "rows.jsonl"), seed=5, held_out=0).train
        return TaskSource(train, group_size=1, sampling=SAMPLING, retries=1)

    log = [
        CapacityGranted(first_group=first, groups=groups, weight_version=0)
        for first, groups in ((0, 3), (3, 6), (9, 1), (10, 11))
    ]
    whole = await send(fresh(), *log)
    assert [sorted(run.task.id for run in whole[7 * epoch : 7 * epoch + 7]) for epoch in range(3)] == [
        [f"rows-{n}" for n in range(7)]
    ] * 3
    for killed_after in range(len(log)):
        first, second = fresh(), fresh()
        emitted = await send(first, *log[:killed_after])
        await send(second, *log[:killed_after])
        assert emitted + await send(second, *log[killed_after:]) == whole
