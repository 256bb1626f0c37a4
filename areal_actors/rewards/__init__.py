"""Reward functions: score an agent's output as a real number.

A reward function takes the task's row and the agent's output and returns a number; it may be a coroutine function. User
functions are named in the recipe as `path.py:function`. An exception is a named failure, never a reward of 0. Built-in
rewards are tables: `[task.reward_options]` is decoded into the callable.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from areal_actors.core.errors import RecipeError
from areal_actors.core.installed_parts import installed_parts, load_part
from areal_actors.rewards.checks import Score, check_reward, check_score, task_name
from areal_actors.rewards.foreign_signatures import adapt
from areal_actors.rewards.gsm8k import Gsm8k
from areal_actors.rewards.json_schema import JsonSchema
from areal_actors.rewards.math_equivalence import MathEquivalence
from areal_actors.rewards.python_tests import PythonTests

__all__ = [
    "Reward",
    "Score",
    "check_reward",
    "check_score",
    "resolve_reward",
    "task_name",
]

Reward = Callable[[dict[str, Any], str], Any]
"""Returns a real number, or an awaitable of one; or a mapping with `reward` and further metrics; validated by
`check_score`."""


class Rule(Protocol):
    """A built-in reward: a callable table of options."""

    def prepare(self) -> None:
        """Load dependencies before the reward is timed; raises RecipeError or SetupError."""
        ...

    def __call__(self, task: dict[str, Any], output: str) -> float | Mapping[str, float]:
        """Returns the reward of the output; raises RewardError if it cannot be computed."""
        ...


REWARDS: Mapping[str, type[Rule]] = {
    "gsm8k": Gsm8k,
    "json_schema": JsonSchema,
    "math": MathEquivalence,
    "python_tests": PythonTests,
}
"""Built-in rule-based rewards by name."""
WEIGHTED = "weighted"
PARTS = "__areal_parts__"
"""Attribute of a weighted reward with those that it adds up."""
MODEL = "model:"
"""Prefix of the name of a trained reward model, followed by its folder; served by `rewards/reward_model.py`."""


def describe_reward(reward: Reward) -> list[str]:
    """Sentences about built-in rewards on this machine; a reward of the user's own is not asked."""
    if isinstance(reward, PythonTests):
        return list(reward.describe())
    return [text for part in getattr(reward, PARTS, ()) for text in describe_reward(part)]


def resolve_reward(name: str, root: Path = Path(), options: Mapping[str, Any] | None = None) -> Reward:
    """Returns the built-in reward `name`, or the function `path.py:function` (relative to `root`), with its options.

    Options are passed to user functions as keyword arguments.

    Raises:
        RecipeError: there is no such function, it does not accept these options or a task and an output, or a required
            package is not installed.
        SetupError: another requirement is missing on this machine.
    """
    options = dict(options or {})
    if name in REWARDS:
        return _rule(name, REWARDS[name], options)
    if name == WEIGHTED:
        return _weighted_reward(options, root)
    if ":" not in name and name not in installed_parts("reward"):
        names = [*REWARDS, WEIGHTED, *installed_parts("reward")]
        near = difflib.get_close_matches(name, names, n=1)
        guess = f"did you mean `{near[0]}`? " if near else ""
        raise RecipeError(
            f"`task.reward`: no reward is called `{name}`; {guess}known: {', '.join(names)}; one of your own:"
            f" `path.py:function`; a trained model: `{MODEL}folder`"
        )
    loaded: Any = load_part("reward", name, root)
    if isinstance(loaded, type) and issubclass(loaded, msgspec.Struct):
        return _rule(name, loaded, options)
    function: Reward = adapt(loaded) or loaded
    if not callable(function) or not _takes_task_and_output(function, options):
        more = f", {', '.join(options)}" if options else ""
        raise RecipeError(
            f"`task.reward`: `{name}` must take the task's row and the output: `def reward(task, output{more})`"
        )
    return partial(function, **options) if options else function


def _rule(name: str, kind: Any, options: dict[str, Any]) -> Reward:
    try:
        rule: Rule = msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        raise RecipeError(f"`task.reward_options` of `{name}`: {error}") from error
    if hasattr(rule, "prepare"):
        rule.prepare()
    return rule


def _weighted_reward(options: dict[str, Any], root: Path) -> Reward:
    if not options:
        raise RecipeError(
            "`task.reward_options`: `weighted` adds up the rewards named here; write for example `math = { weight ="
            " 1.0 }`"
        )
    parts: list[tuple[str, float, Reward]] = []
    for name, table in options.items():
        weight = table.get("weight") if isinstance(table, Mapping) else None
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise RecipeError(
                f"`task.reward_options.{name}`: must be a table with a finite `weight`; write `{{ weight = 1.0 }}`"
            )
        if name == WEIGHTED or name.startswith(MODEL):
            raise RecipeError(f"`task.reward_options.{name}`: only rules and functions can be added up; leave it out")
        part = resolve_reward(name, root, {option: value for option, value in table.items() if option != "weight"})
        if inspect.iscoroutinefunction(part):
            raise RecipeError(
                f"`task.reward_options.{name}`: a coroutine function cannot be added up; write a plain function"
            )
        parts.append((name, float(weight), part))

    def weigh(task: dict[str, Any], output: str) -> Mapping[str, float]:
        """Returns the sum as `reward`, each reward by its name, and their own metrics.

        If one of them fails, so does the sum.
        """
        scores = [(part_name, weight, check_score(reward(task, output))) for part_name, weight, reward in parts]
        metrics = {metric: value for *_, score in scores for metric, value in score.metrics.items()}
        named = {part_name: float(score) for part_name, _, score in scores}
        return {**metrics, **named, "reward": sum(weight * score for _, weight, score in scores)}

    setattr(weigh, PARTS, [part for *_, part in parts])
    return weigh


def _takes_task_and_output(function: Reward, options: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind({}, "", **options)
    except TypeError:
        return False
    except ValueError:  # built-in functions have no signature to inspect
        return True
    return True
