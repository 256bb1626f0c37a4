"""Several rewards in one: `task.reward = ["math", "length:512", "format:answer-tag"]`, and the sum `weighted`.

The list is a short form: each entry becomes a part of `weighted`, with weight 1 unless `[task.reward_options]` has a
table of its name. `rule:argument` sets the one option that the rule is about.

    reward = ["math", "format:answer-tag"]
    [task.reward_options]
    "format:answer-tag" = { weight = 0.2, only_if = "math" }

A part with `only_if` counts only where the other part has at least half of a full reward: a form counts nothing
around a wrong answer.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from areal_actors.core.errors import RecipeError
from areal_actors.core.task_settings import WEIGHTED
from areal_actors.rewards.checks import Score, check_score

RULE, WEIGHT, ONLY_IF = "rule", "weight", "only_if"
OWN_KEYS = frozenset({RULE, WEIGHT, ONLY_IF})
"""Keys of a part's table that are not options of its rule."""
ENOUGH = 0.5
"""Score of a part from which those count that have it as `only_if`."""
PARTS = "__areal_parts__"
"""Attribute of a weighted reward with those that it adds up."""

RewardFunction = Callable[[dict[str, Any], str], Any]
Resolve = Callable[[str, Mapping[str, Any]], RewardFunction]
"""Returns the reward of a name with its options."""


class RewardPart(msgspec.Struct, frozen=True):
    """A reward that is added up."""

    name: str
    weight: float
    function: RewardFunction
    only_if: str = ""


def expand_reward_list(
    rewards: Sequence[str], options: Mapping[str, Any], arguments: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the options of `weighted` for a list of rewards.

    Args:
        rewards: entries of the list.
        options: `[task.reward_options]`, with a table for any of them.
        arguments: option that `rule:argument` sets, by rule.

    Raises:
        RecipeError: an entry is no text, occurs twice, or `options` has a table for none of them.
    """
    if wrong := [entry for entry in rewards if not isinstance(entry, str) or not entry]:
        raise RecipeError(f'`task.reward`: found {wrong[0]!r}; write names of rewards, as in `["math", "length:512"]`')
    if twice := [entry for entry in rewards if rewards.count(entry) > 1]:
        raise RecipeError(f"`task.reward`: `{twice[0]}` occurs twice; name it once, with a weight")
    if unknown := options.keys() - set(rewards):
        names = ", ".join(f"`{name}`" for name in rewards)
        raise RecipeError(f"`task.reward_options`: `{min(unknown)}` is none of the rewards {names}")
    return {entry: _table_of(entry, options.get(entry, {}), arguments) for entry in rewards}


def _table_of(entry: str, table: Any, arguments: Mapping[str, str]) -> Any:
    rule, colon, argument = entry.partition(":")
    if not isinstance(table, Mapping):
        return table
    value: Any = int(argument) if argument.isdecimal() else argument
    own = {RULE: rule, arguments[rule]: value} if colon and rule in arguments else {}
    return {WEIGHT: 1.0, **own, **table}


def weighted_reward(options: Mapping[str, Any], resolve: Resolve, prefix: str) -> RewardFunction:
    """Returns the sum of the rewards of `[task.reward_options]`.

    Args:
        options: a table for each part.
        resolve: finds the reward of a part.
        prefix: beginning of names that cannot be added up.

    Raises:
        RecipeError: there is no part, or one is wrong; names its table.
    """
    if not options:
        raise RecipeError(
            "`task.reward_options`: `weighted` adds up the rewards named here; write for example `math = { weight ="
            " 1.0 }`"
        )
    parts = [_read_part(name, table, resolve, prefix) for name, table in options.items()]
    ordered = list(_order_gates(parts))

    def weigh(task: dict[str, Any], output: str) -> Mapping[str, Any]:
        """Returns the sum as `reward`, each reward by its name, and their own metrics.

        If one of them fails, so does the sum.
        """
        scores: dict[str, Score] = {}
        for part in ordered:
            score = check_score(part.function(task, output))
            is_open = not part.only_if or scores[part.only_if] >= ENOUGH
            scores[part.name] = score if is_open else check_score({**score.metrics, "reward": 0.0})
        metrics = {metric: value for score in scores.values() for metric, value in score.metrics.items()}
        named = {name: float(score) for name, score in scores.items()}
        whole: dict[str, Any] = {**metrics, **named, "reward": sum(part.weight * scores[part.name] for part in parts)}
        if spans := [span for score in scores.values() for span in score.spans]:
            whole["spans"] = spans
        return whole

    setattr(weigh, PARTS, [part.function for part in parts])
    return weigh


def _read_part(name: str, table: Any, resolve: Resolve, prefix: str) -> RewardPart:
    place = f"`task.reward_options.{name}`"
    weight = table.get(WEIGHT) if isinstance(table, Mapping) else None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise RecipeError(f"{place}: must be a table with a finite `weight`; write `{{ weight = 1.0 }}`")
    rule = table.get(RULE, name)
    if rule == WEIGHTED or rule.startswith(prefix):
        raise RecipeError(f"{place}: only rules and functions can be added up; leave it out")
    function = resolve(rule, {option: value for option, value in table.items() if option not in OWN_KEYS})
    if inspect.iscoroutinefunction(function):
        raise RecipeError(f"{place}: a coroutine function cannot be added up; write a plain function")
    return RewardPart(name, float(weight), function, table.get(ONLY_IF, ""))


def _order_gates(parts: Sequence[RewardPart]) -> Iterator[RewardPart]:
    """Yields the parts, each after the one on which it depends."""
    names = [part.name for part in parts]
    for part in parts:
        if part.only_if and part.only_if not in names:
            raise RecipeError(
                f"`task.reward_options.{part.name}`: `only_if` names `{part.only_if}`; rewards here: {', '.join(names)}"
            )
    waiting, done = list(parts), set[str]()
    while waiting:
        ready = [part for part in waiting if not part.only_if or part.only_if in done]
        if not ready:
            circle = ", ".join(f"`{part.name}`" for part in waiting)
            raise RecipeError(f"`task.reward_options`: {circle} are only counted if another of them is; leave one out")
        yield from ready
        done |= {part.name for part in ready}
        waiting = [part for part in waiting if part.name not in done]
