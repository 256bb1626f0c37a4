"""Validates rewards that are normalized separately, which need names, and role-wise baselines, which need roles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import WEIGHTED, TaskSettings
from areal_actors.training.algorithms.base import Algorithm
from areal_actors.training.algorithms.custom import CustomAlgorithm

SETTING = "reward_normalization"


def find_problems(task: TaskSettings, algorithm: Algorithm, facts: RunFacts) -> Problems:
    """Yields what keeps rewards from being normalized separately or compared by role, and weights that nothing uses."""
    if not facts.has_episodes():
        return
    yield from _role_problems(task, algorithm, facts)
    key: Key
    key, found = ("algorithm", SETTING), getattr(algorithm, SETTING, "sum")
    if isinstance(algorithm, CustomAlgorithm):
        key, found = ("algorithm", "options", SETTING), algorithm.options.get(SETTING, "sum")
    if found != "separate":
        if task.reward_weights:
            unused = f'but {".".join(key)} = "{found}" takes the weights of the sum'
            yield (
                ("task", "reward_weights"),
                f'found {toml_value(task.reward_weights)}, {unused}; leave it out, or write "separate"',
            )
        return
    yield from _weight_problems(task)
    if len(task.named_weights()) < 2:
        remedy = (
            "write a list of rewards"
            if task.reward == WEIGHTED
            else "write a list of rewards, or name in task.reward_weights those that it returns beside `reward`"
        )
        yield key, f'found "separate", but task.reward = {toml_value(task.reward)} has not two named rewards; {remedy}'


def _role_problems(task: TaskSettings, algorithm: Algorithm, facts: RunFacts) -> Problems:
    """Yields what keeps episodes from having the baseline of their role."""
    if algorithm.baseline_decay is None:
        return
    if facts.is_online and algorithm.role_field:
        fault = f"found {toml_value(algorithm.role_field)}, but external agents bring tasks without such a field"
        remedy = 'write "", and task.baseline_over = "roles" for the roles of calls'
        yield ("algorithm", "role_field"), f"{fault}; {remedy}"
    if task.baseline_over == "calls":
        fault = 'found "calls", but a role-wise baseline is that of whole episodes'
        yield ("task", "baseline_over"), f'{fault}; write "episodes", or "roles" for the roles of calls'


def _weight_problems(task: TaskSettings) -> Problems:
    """Yields names that no reward of a list has, and weights that are no numbers."""
    for name, weight in task.reward_weights.items():
        place = ("task", "reward_weights", name)
        if task.reward == WEIGHTED and name not in task.reward_options:
            yield place, f"no reward has this name; {nearest(name, tuple(task.reward_options))}"
        elif not math.isfinite(weight):
            yield place, f"found {weight}; write a finite number"


def unused_settings(task: TaskSettings, algorithm: Algorithm) -> Iterator[Key]:
    """Yields settings of several rewards, where there is one."""
    if len(task.named_weights()) < 2:
        yield ("task", "reward_weights")
        if hasattr(algorithm, SETTING):
            yield ("algorithm", SETTING)
