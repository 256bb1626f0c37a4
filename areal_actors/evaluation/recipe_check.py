"""Validates the number of held-out tasks that `[evaluation]` asks for."""

from __future__ import annotations

from areal_actors.core.problems import Problems
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings
from areal_actors.evaluation.evaluator import EvaluationConfig


def find_problems(evaluation: EvaluationConfig, task: TaskSettings, facts: RunFacts) -> Problems:
    """Yields a problem if a run has fewer held-out tasks than it evaluates."""
    tasks, held_out, key = evaluation.tasks, task.held_out, ("evaluation", "tasks")
    if facts.has_episodes() and facts.is_online:
        if tasks:
            yield key, f"found {tasks}, but an online run has no held-out tasks; write `tasks = 0`"
    elif not facts.is_serving and isinstance(held_out, int) and held_out < tasks:
        fault = f"found {tasks}, but task.held_out keeps only {held_out}"
        yield key, f"{fault}; write at most {held_out}, or hold out more"
