from __future__ import annotations

from support.samples import SAMPLING, abandoned, loaded, work

from areal_actors.core.values import Task
from areal_actors.evaluation.evaluator import EvaluationConfig, Evaluator
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    EpisodeEvaluated,
    EpisodeScored,
    EvaluateEpisode,
    EvaluationCompleted,
    RunResumed,
    RunStopping,
)

TASKS = [Task(id=f"held-out-{number}", data={"question": f"{number}?"}) for number in range(3)]


def evaluator(every_steps=10, steps=25, tasks=TASKS, **settings):
    config = EvaluationConfig(tasks=len(tasks), every_steps=every_steps, **settings)
    return Evaluator(config, tasks, steps=steps, sampling=SAMPLING, retries=1)


def evaluated(episode, reward=1.0, tokens=10, output="1 + 1 = 2\n#### 2", sampled_by=None):
    by = sampled_by or {0: tokens}
    return EpisodeEvaluated(
        work=work(episode, purpose="evaluate"), reward=reward, output=output, completion_tokens=tokens, sampled_by=by
    )


def runs(emitted):
    return [held_out.work for held_out in emitted if isinstance(held_out, EvaluateEpisode)]


def groups(emitted):
    return sorted({run.group for run in runs(emitted)})


async def finish(send, actor, emitted):
    """Score whatever was begun, until nothing more is."""
    everything = list(emitted)
    while begun := runs(emitted):
        emitted = await send(actor, *(evaluated(run.episode) for run in begun))
        everything += emitted
    return everything


async def test_before_the_first_step_every_task_is_run_sampled_and_greedy(send):
    emitted = runs(await send(evaluator(), loaded("a", 0)))
    assert [run.episode for run in emitted] == [
        f"evaluation-0-{mode}.{number}" for mode in ("sampled", "greedy") for number in range(3)
    ]
    assert {run.purpose for run in emitted} == {"evaluate"}
    assert {run.attempts_left for run in emitted} == {1}
    assert [run.sampling.temperature for run in emitted] == [1.0] * 3 + [0.0] * 3
    assert [run.task.id for run in emitted[:3]] == ["held-out-0", "held-out-1", "held-out-2"]


async def test_a_version_is_due_when_every_live_worker_has_it_and_only_once(send):
    actor = evaluator()
    await finish(send, actor, await send(actor, loaded("a", 0), loaded("b", 0)))
    assert await send(actor, loaded("a", 10)) == []
    begun = await send(actor, loaded("b", 10))
    assert groups(begun) == ["evaluation-10-sampled"]
    await finish(send, actor, begun)
    assert await send(actor, loaded("b", 10), loaded("a", 11), loaded("b", 11)) == []
    assert groups(await send(actor, loaded("a", 25), loaded("b", 25))) == [
        "evaluation-25-greedy",
        "evaluation-25-sampled",
    ]


async def test_while_training_continues_fewer_tasks_are_run(send):
    actor = evaluator(periodic_tasks=2)
    emitted = [
        one for version in (0, 10, 25) for one in await finish(send, actor, await send(actor, loaded("a", version)))
    ]
    assert [run.episode for run in runs(emitted) if "-10-" in run.group] == [
        "evaluation-10-sampled.0",
        "evaluation-10-sampled.1",
    ]
    assert len([run for run in runs(emitted) if run.group == "evaluation-25-sampled"]) == 3


async def test_a_lost_worker_is_not_waited_for(send):
    for gone in (ActorFailed(actor="b", process="p", reason="killed"), ActorStopped(actor="b", process="p")):
        actor = evaluator()
        await finish(send, actor, await send(actor, loaded("a", 0), loaded("b", 0)))
        await send(actor, loaded("a", 10))
        assert groups(await send(actor, gone)) == ["evaluation-10-sampled"]


async def test_with_no_interval_only_before_and_after_count(send):
    actor = evaluator(every_steps=0)
    await finish(send, actor, await send(actor, loaded("a", 0)))
    assert await send(actor, *(loaded("a", version) for version in range(1, 25))) == []
    assert len(await send(actor, loaded("a", 25))) == 6


async def test_without_tasks_nothing_is_evaluated(send):
    assert await send(evaluator(tasks=[]), loaded("a", 0), loaded("a", 25)) == []


async def test_the_accuracy_is_that_of_the_episodes_that_ended_with_a_score(send):
    actor = evaluator()
    await send(actor, loaded("a", 0))
    lost = abandoned("evaluation-0-greedy.1", purpose="evaluate", attempts_left=1)
    stream = [
        evaluated("evaluation-0-greedy.2", 1.0, tokens=30, sampled_by={0: 20, 1: 10}),
        lost,
        lost,
        abandoned("evaluation-0-greedy.1", purpose="evaluate", attempt=2),
        abandoned("evaluation-0-greedy.1", purpose="evaluate", attempt=2),
        evaluated("evaluation-0-greedy.2", 1.0, tokens=30),
    ]
    (again,) = runs(await send(actor, *stream))
    assert (again.episode, again.attempt, again.attempts_left, again.purpose) == (
        "evaluation-0-greedy.1",
        2,
        0,
        "evaluate",
    )
    assert actor.status()["evaluation-0-greedy"] == "2/3"
    (done,) = await send(actor, evaluated("evaluation-0-greedy.0", 0.0, tokens=10))
    assert (done.weight_version, done.mode, done.tasks, done.failed) == (0, "greedy", 3, 1)
    assert (done.accuracy, done.mean_tokens, done.reward_mean, done.common_reward_mean) == (0.5, 20.0, 0.5, 0.5)
    assert done.sampled_by == {0: 30, 1: 10}
    assert [sample["reward"] for sample in done.samples] == [0.0, 1.0]
    assert await send(actor, evaluated("evaluation-0-greedy.0", 1.0)) == []


async def test_a_round_in_which_everything_failed_is_reported(send):
    actor = evaluator()
    await send(actor, loaded("a", 0))
    (done,) = await send(
        actor, *(abandoned(f"evaluation-0-sampled.{number}", purpose="evaluate") for number in range(3))
    )
    assert (done.failed, done.accuracy, done.mean_tokens, done.samples) == (3, 0.0, 0.0, ())


async def test_training_episodes_are_none_of_its_business(send):
    actor = evaluator()
    await send(actor, loaded("a", 0))
    assert await send(actor, abandoned("0.0"), evaluated("0.0", 1.0)) == []


async def test_evaluation_episodes_are_bounded_during_training_and_unbounded_after_it(send):
    actor = evaluator(tasks=TASKS * 3, max_concurrent=4)
    emitted = await send(actor, loaded("a", 0))
    assert len(runs(emitted)) == 18
    await finish(send, actor, emitted)
    begun = runs(await send(actor, loaded("a", 10)))
    assert [run.episode for run in begun] == [f"evaluation-10-sampled.{number}" for number in range(4)]
    assert [run.episode for run in runs(await send(actor, evaluated(begun[2].episode)))] == ["evaluation-10-sampled.4"]
    assert runs(await send(actor, abandoned(begun[0].episode, purpose="evaluate", attempts_left=1)))[0].attempt == 2
    assert len(runs(await send(actor, loaded("a", 25)))) == 4, "after training the evaluation has all workers"


async def test_an_evaluation_due_during_another_begins_after_it_at_the_version_of_then(send):
    actor = evaluator(steps=100)
    await finish(send, actor, await send(actor, loaded("a", 0)))
    begun = await send(actor, loaded("a", 10))
    assert await send(actor, loaded("a", 20), loaded("a", 30), loaded("a", 33)) == []
    emitted = await finish(send, actor, begun)
    assert [done.weight_version for done in emitted if isinstance(done, EvaluationCompleted)] == [10, 33]


async def test_a_version_that_the_workers_passed_over_is_evaluated_at_the_next_they_have(send):
    actor = evaluator()
    await finish(send, actor, await send(actor, loaded("a", 0), loaded("b", 0)))
    assert groups(await send(actor, loaded("a", 11), loaded("b", 12))) == ["evaluation-11-sampled"]


async def test_a_baseline_beside_training_is_bounded_and_none_is_none(send):
    assert len(runs(await send(evaluator(baseline="concurrent", max_concurrent=2), loaded("a", 0)))) == 2
    actor = evaluator(baseline="none")
    assert await send(actor, loaded("a", 0)) == []
    assert groups(await send(actor, loaded("a", 10))) == ["evaluation-10-sampled"]


async def test_answers_in_between_may_be_greedy(send):
    run, *_ = runs(await send(evaluator(baseline="none", periodic_mode="greedy"), loaded("a", 0), loaded("a", 10)))
    assert (run.group, run.sampling.temperature) == ("evaluation-10-greedy", 0.0)


async def test_evaluations_of_all_tasks_and_of_some_are_compared_by_the_tasks_that_both_have(send):
    actor = evaluator(periodic_tasks=1)
    await send(actor, loaded("a", 0))
    emitted = await send(
        actor, *(evaluated(f"evaluation-0-greedy.{number}", reward) for number, reward in enumerate((0.25, 1.0, 1.0)))
    )
    assert (emitted[-1].reward_mean, emitted[-1].common_reward_mean) == (0.75, 0.25)


async def test_a_stopping_run_begins_and_repeats_nothing(send):
    actor = evaluator(max_concurrent=1, baseline="concurrent")
    await send(actor, loaded("a", 0), RunStopping(reason="now"))
    lost = abandoned("evaluation-0-sampled.0", purpose="evaluate", attempts_left=1)
    assert await send(actor, lost, evaluated("evaluation-0-sampled.0"), loaded("a", 25)) == []


async def test_a_run_that_continues_ends_the_evaluation_that_it_had_begun(send):
    actor = evaluator(max_concurrent=1, baseline="concurrent")
    (first,) = runs(await send(actor, loaded("a", 0)))
    lost = abandoned(first.episode, purpose="evaluate", attempts_left=1)
    assert await send(actor, RunStopping(reason="now"), lost) == []
    (again,) = runs(await send(actor, RunResumed(recipe={}, reason="", folder="runs/mine")))
    assert (again.episode, again.attempt) == (first.episode, 2)
    assert groups(await send(actor, evaluated(first.episode))) == [first.group]


async def test_what_the_queue_of_work_has_lost_is_published_again_when_the_run_continues(send):
    actor = evaluator(max_concurrent=3, baseline="concurrent")
    assert [run.episode for run in runs(await send(actor, loaded("a", 0)))] == [
        f"evaluation-0-sampled.{number}" for number in range(3)
    ]
    await send(actor, EpisodeScored(work=work("evaluation-0-sampled.2", purpose="evaluate"), session="s", reward=1.0))
    resumed = RunResumed(
        recipe={}, reason="", folder="", queued={"evaluation-0-sampled.0": 1}, published={"evaluator": 1}
    )
    (again,) = runs(await send(actor, resumed))
    assert (again.episode, again.attempt, again.attempts_left, again.task.id) == (
        "evaluation-0-sampled.1",
        1,
        1,
        "held-out-1",
    )
    assert again.sampling.temperature == 1.0
    assert await send(actor, resumed) == [], "published for the first of the two"


async def test_an_evaluator_after_replay_continues_as_the_first_would(send):
    stream = [loaded("a", 0), *(evaluated(f"evaluation-0-sampled.{number}") for number in range(3)), loaded("a", 10)]
    stream += [evaluated(f"evaluation-0-greedy.{number}") for number in range(3)] + [
        evaluated("evaluation-10-sampled.1")
    ]
    for cut in range(len(stream)):
        first, second = evaluator(max_concurrent=2), evaluator(max_concurrent=2)
        await send(first, *stream[:cut])
        await send(second, *stream[:cut])
        assert await send(first, *stream[cut:]) == await send(second, *stream[cut:])
        assert vars(first) == vars(second)
