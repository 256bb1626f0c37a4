"""Held-out episodes are admitted apart from those that are trained: however slow they are, training goes on."""

from __future__ import annotations

import asyncio

from support.simulation import TASKS_EVALUATED, Simulation
from support.toy_parts import ToyAgent, opened

from areal_actors.evaluation.evaluator import EvaluationConfig
from areal_actors.messages import EpisodeEvaluated, EvaluationCompleted, StepCompleted

BESIDE = EvaluationConfig(tasks=TASKS_EVALUATED, every_steps=2, max_concurrent=1, baseline="concurrent")


class SlowWhenHeldOut(ToyAgent):
    """Takes its time over held-out tasks, whose numbers are negative."""

    async def run(self, task, *, base_url, api_key):
        if "--" in task.id:
            await asyncio.sleep(390)
        return await super().run(task, base_url=base_url, api_key=api_key)


def step_times(outcome):
    return [envelope.time for envelope in outcome.log if envelope.subject == StepCompleted.subject]


def run(talker, seed=3):
    return Simulation(seed=seed, trouble=0.0, kills=0, evaluation=BESIDE, talker=talker).run()


def test_training_continues_while_an_evaluation_is_slow():
    slow, quick = ([run(talker, seed) for seed in range(8)] for talker in (SlowWhenHeldOut, ToyAgent))
    for outcome in slow:
        end, *_ = (envelope.time for envelope in outcome.log if envelope.subject == EvaluationCompleted.subject)
        assert len(step_times(outcome)) == 5
        assert step_times(outcome)[-1] < end, "the first evaluation outlasts the training"
    assert sum(step_times(one)[-1] for one in slow) - sum(step_times(one)[-1] for one in quick) < 8 * 30, (
        "seconds, of about 100 a run"
    )


def test_a_slow_evaluation_is_not_attributed_to_the_version_with_which_it_began():
    evaluations = list(opened(run(SlowWhenHeldOut), EvaluationCompleted))
    late = [event for event in evaluations if event.weight_version == 0]
    assert late
    assert all(min(event.sampled_by) > 0 for event in late), (
        "it began with version 0, and every token is of a later one"
    )
    last = [event for event in evaluations if event.weight_version == 5]
    assert [set(event.sampled_by) for event in last] == [{5}, {5}]


def test_even_when_a_slow_evaluation_loses_all_workers_at_once_each_task_counts_once():
    outcome = Simulation(seed=5, trouble=0.0, kills=8, evaluation=BESIDE, talker=SlowWhenHeldOut).run()
    episodes = [event.work.episode for event in opened(outcome, EpisodeEvaluated)]
    assert len(episodes) == len(set(episodes))
    for event in opened(outcome, EvaluationCompleted):
        group = f"evaluation-{event.weight_version}-{event.mode}."
        assert event.failed + sum(episode.startswith(group) for episode in episodes) == event.tasks
