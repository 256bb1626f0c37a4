from __future__ import annotations

from samples import SAMPLING, abandoned

from areal_actors.actors.task_source import TaskSource
from areal_actors.datasets import open_dataset
from areal_actors.messages import CapacityGranted, RunStopping
from areal_actors.values import Task


class Numbered:
    def __len__(self):
        return 10

    def task(self, number):
        return Task(id=f"task-{number}", data={"question": f"{number}?"})


def source(retries=1):
    return TaskSource(Numbered(), group_size=2, sampling=SAMPLING, retries=retries)


async def test_a_grant_becomes_every_member_of_its_groups(say):
    said = await say(source(), CapacityGranted(first_group=3, groups=2, weight_version=0))
    assert [(run.episode, run.group, run.task.id, run.attempt, run.attempts_left) for run in said] == [
        ("3.0", "3", "task-3", 1, 1),
        ("3.1", "3", "task-3", 1, 1),
        ("4.0", "4", "task-4", 1, 1),
        ("4.1", "4", "task-4", 1, 1),
    ]


async def test_a_lost_attempt_is_tried_again_until_none_is_left(say):
    (again,) = await say(source(), abandoned("3.0", attempts_left=1))
    assert (again.episode, again.attempt, again.attempts_left) == ("3.0", 2, 0)
    assert await say(source(), abandoned("3.0", attempt=2, attempts_left=0)) == []


async def test_an_attempt_reported_lost_by_two_actors_is_tried_again_once(say):
    lost = abandoned("3.0", attempts_left=2)
    assert len(await say(source(), lost, lost)) == 1


async def test_a_late_report_of_an_earlier_attempt_changes_nothing(say):
    actor = source()
    first, second, last = (abandoned("3.0", attempt=attempt, attempts_left=3 - attempt) for attempt in (1, 2, 3))
    assert [run.attempt for run in await say(actor, first, second, first, last)] == [2, 3]
    assert await say(actor, first, second) == []


async def test_held_out_episodes_are_tried_again_by_the_evaluator(say):
    assert await say(source(), abandoned("evaluation-0-greedy.1", attempts_left=1, purpose="evaluate")) == []


async def test_where_it_is_in_the_dataset_follows_from_the_grants_it_has_heard(say):
    grants = [CapacityGranted(first_group=first, groups=5, weight_version=0) for first in (0, 5, 10)]
    first, second = source(), source()
    said = await say(first, *grants)
    await say(second, *grants[:2])
    assert await say(second, *grants[2:]) == said[20:]
    assert first.status() == second.status() == {"drawn": 15, "epochs": 1.5}


async def test_nothing_is_tried_again_while_the_run_stops(say):
    assert await say(source(), RunStopping(reason="enough"), abandoned("3.0", attempts_left=1)) == []


async def test_killed_in_mid_epoch_and_started_again_it_draws_what_the_first_would_have(say, tmp_path):
    """A new process opens the file anew and hears the log from its start; what the first has said already is discarded."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "{n}?", "answer": "{n}"}}\n' for n in range(7)))

    def fresh():
        train = open_dataset(str(tmp_path / "rows.jsonl"), seed=5, held_out=0).train
        return TaskSource(train, group_size=1, sampling=SAMPLING, retries=1)

    log = [CapacityGranted(first_group=first, groups=groups, weight_version=0) for first, groups in ((0, 3), (3, 6), (9, 1), (10, 11))]
    whole = await say(fresh(), *log)
    assert [sorted(run.task.id for run in whole[7 * epoch : 7 * epoch + 7]) for epoch in range(3)] == [[f"rows-{n}" for n in range(7)]] * 3
    for killed_after in range(len(log)):
        first, second = fresh(), fresh()
        said = await say(first, *log[:killed_after])
        await say(second, *log[:killed_after])
        assert said + await say(second, *log[killed_after:]) == whole
