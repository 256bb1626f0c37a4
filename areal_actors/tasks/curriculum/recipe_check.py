"""Validates `[task.curriculum]` and success rates that end a source."""

from __future__ import annotations

from areal_actors.core.problems import Problems
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings


def find_problems(task: TaskSettings, facts: RunFacts) -> Problems:
    """Yields what keeps draws from following success rates."""
    if (curriculum := task.curriculum) is None or facts.is_serving:
        return
    key = ("task", "curriculum")
    if not facts.has_episodes():
        yield key, "found one, but this run learns from examples, which have no success rate; leave it out"
    elif facts.is_online:
        yield key, "found one, but external agents choose their tasks; leave it out"
    elif not (curriculum.new or curriculum.mixed):
        yield (*key, "new"), "found 0 beside `mixed = 0`, so that no task has a first group; write a number above 0"
