"""Reward functions: score an agent's output as a real number.

A reward function takes the task's row and the agent's output and returns a number; it may be a coroutine function. User
functions are named in the recipe as `path.py:function`. An exception is a named failure, never a reward of 0. Built-in
rewards are tables: `[task.reward_options]` is decoded into the callable.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from areal_actors.core.errors import RecipeError
from areal_actors.core.installed_parts import installed_parts, load_part
from areal_actors.core.task_settings import WEIGHTED
from areal_actors.rewards.answer_form import AnswerForm, Length
from areal_actors.rewards.checks import Score, check_score
from areal_actors.rewards.composition import PARTS, weighted_reward
from areal_actors.rewards.foreign_signatures import adapt
from areal_actors.rewards.gsm8k import Gsm8k
from areal_actors.rewards.json_schema import JsonSchema
from areal_actors.rewards.judge.settings import ModelJudge
from areal_actors.rewards.math_equivalence import MathEquivalence
from areal_actors.rewards.python_tests import PythonTests
from areal_actors.rewards.spans import check_reward

__all__ = [
    "Reward",
    "Score",
    "check_reward",
    "check_score",
    "resolve_reward",
]

Reward = Callable[[dict[str, Any], str], Any]
"""Returns a real number, or an awaitable of one; or a mapping with `reward` and further metrics; validated by
`check_score`."""


class Rule(Protocol):
    """A built-in reward: a callable table of options.

    One with a method `prepare` loads its dependencies there, before the reward is timed; it raises RecipeError or
    SetupError.
    """

    def __call__(self, task: dict[str, Any], output: str) -> float | Mapping[str, float]:
        """Returns the reward of the output; raises RewardError if it cannot be computed."""
        ...


REWARDS: Mapping[str, type[Rule]] = {
    "format": AnswerForm,
    "gsm8k": Gsm8k,
    "json_schema": JsonSchema,
    "judge": ModelJudge,
    "length": Length,
    "math": MathEquivalence,
    "python_tests": PythonTests,
}
"""Built-in rule-based rewards by name."""
ARGUMENTS = {name: rule.argument for name, rule in REWARDS.items() if hasattr(rule, "argument")}
"""Option that `rule:argument` sets in a list of rewards, by rule."""
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
        return weighted_reward(options, lambda part, table: resolve_reward(part, root, table), MODEL)
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


def _takes_task_and_output(function: Reward, options: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind({}, "", **options)
    except TypeError:
        return False
    except ValueError:  # built-in functions have no signature to inspect
        return True
    return True
