from __future__ import annotations

from samples import SAMPLING, abandoned, loaded, work

from areal_actors.actors.evaluator import EvaluationConfig, Evaluator
from areal_actors.messages import ActorFailed, ActorStopped, EpisodeEvaluated, RunEpisode
from areal_actors.values import Task

TASKS = [Task(id=f"held-out-{number}", data={"question": f"{number}?"}) for number in range(3)]


def evaluator(every_steps=10, steps=25, tasks=TASKS, tasks_between=64):
    config = EvaluationConfig(tasks=len(tasks), every_steps=every_steps, tasks_between=tasks_between)
    return Evaluator(config, tasks, steps=steps, sampling=SAMPLING, retries=1)


def evaluated(episode, reward, tokens=10, output="1 + 1 = 2\n#### 2"):
    return EpisodeEvaluated(work=work(episode, purpose="evaluate"), reward=reward, output=output, completion_tokens=tokens)


def groups(said):
    return sorted({run.group for run in said if isinstance(run, RunEpisode)})


async def test_before_the_first_step_every_task_is_run_sampled_and_greedy(say):
    said = await say(evaluator(), loaded("a", 0))
    assert [run.episode for run in said] == [f"evaluation-0-{mode}.{number}" for mode in ("sampled", "greedy") for number in range(3)]
    assert {run.purpose for run in said} == {"evaluate"}
    assert {run.attempts_left for run in said} == {1}
    assert [run.sampling.temperature for run in said] == [1.0] * 3 + [0.0] * 3
    assert [run.task.id for run in said[:3]] == ["held-out-0", "held-out-1", "held-out-2"]


async def test_a_version_is_due_when_every_live_worker_has_it_and_only_once(say):
    actor = evaluator()
    await say(actor, loaded("a", 0), loaded("b", 0))
    assert await say(actor, loaded("a", 10)) == []
    assert groups(await say(actor, loaded("b", 10))) == ["evaluation-10-sampled"]
    assert await say(actor, loaded("b", 10), loaded("a", 11), loaded("b", 11)) == []
    assert groups(await say(actor, loaded("a", 25), loaded("b", 25))) == ["evaluation-25-greedy", "evaluation-25-sampled"]


async def test_while_training_goes_on_fewer_tasks_are_run(say):
    actor = evaluator(tasks_between=2)
    said = await say(actor, loaded("a", 0), loaded("a", 10), loaded("a", 25))
    assert [run.episode for run in said if run.group == "evaluation-10-sampled"] == ["evaluation-10-sampled.0", "evaluation-10-sampled.1"]
    assert len([run for run in said if run.group == "evaluation-25-sampled"]) == 3


async def test_nobody_waits_for_a_worker_that_is_gone(say):
    for gone in (ActorFailed(actor="b", process="p", reason="killed"), ActorStopped(actor="b", process="p")):
        actor = evaluator()
        await say(actor, loaded("a", 0), loaded("b", 0), loaded("a", 10))
        assert groups(await say(actor, gone)) == ["evaluation-10-sampled"]


async def test_with_no_interval_only_before_and_after_count(say):
    actor = evaluator(every_steps=0)
    await say(actor, loaded("a", 0))
    assert await say(actor, *(loaded("a", version) for version in range(1, 25))) == []
    assert len(await say(actor, loaded("a", 25))) == 6


async def test_without_tasks_nothing_is_evaluated(say):
    assert await say(evaluator(tasks=[]), loaded("a", 0), loaded("a", 25)) == []


async def test_the_accuracy_is_that_of_the_episodes_that_ended_with_a_score(say):
    actor = evaluator()
    await say(actor, loaded("a", 0))
    stream = [
        evaluated("evaluation-0-greedy.2", 1.0, tokens=30),
        abandoned("evaluation-0-greedy.1", purpose="evaluate", attempts_left=1),
        abandoned("evaluation-0-greedy.1", purpose="evaluate", attempt=2),
        abandoned("evaluation-0-greedy.1", purpose="evaluate", attempt=2),
        evaluated("evaluation-0-greedy.2", 1.0, tokens=30),
    ]
    assert await say(actor, *stream) == []
    assert actor.status()["evaluation-0-greedy"] == "2/3"
    (done,) = await say(actor, evaluated("evaluation-0-greedy.0", 0.0, tokens=10))
    assert (done.weight_version, done.mode, done.tasks, done.failed) == (0, "greedy", 3, 1)
    assert (done.accuracy, done.mean_tokens) == (0.5, 20.0)
    assert [sample["reward"] for sample in done.samples] == [0.0, 1.0]
    assert await say(actor, evaluated("evaluation-0-greedy.0", 1.0)) == []


async def test_a_round_in_which_everything_failed_says_so(say):
    actor = evaluator()
    await say(actor, loaded("a", 0))
    (done,) = await say(actor, *(abandoned(f"evaluation-0-sampled.{number}", purpose="evaluate") for number in range(3)))
    assert (done.failed, done.accuracy, done.mean_tokens, done.samples) == (3, 0.0, 0.0, ())


async def test_training_episodes_are_none_of_its_business(say):
    actor = evaluator()
    await say(actor, loaded("a", 0))
    assert await say(actor, abandoned("0.0"), evaluated("0.0", 1.0)) == []
