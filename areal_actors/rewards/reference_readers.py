"""Rules with a reference in every task, and the rules of a recipe's reward that are such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from areal_actors.core.errors import RewardError
from areal_actors.core.task_settings import WEIGHTED, TaskSettings
from areal_actors.rewards import REWARDS, resolve_reward
from areal_actors.rewards.composition import OWN_KEYS, RULE


@runtime_checkable
class ReferenceReader(Protocol):
    """A rule with a reference in every task."""

    def read_reference(self, task: Mapping[str, Any]) -> object:
        """Returns it; raises RewardError if it cannot be read."""
        ...


def reference_readers(task: TaskSettings) -> Iterator[tuple[str, ReferenceReader]]:
    """Yields the built-in rules of a reward that have a reference in every task, by name."""
    parts: list[tuple[str, Mapping[str, Any]]] = [(task.reward, task.reward_options)]
    if task.reward == WEIGHTED:
        parts = [
            (table.get(RULE, name), {key: value for key, value in table.items() if key not in OWN_KEYS})
            for name, table in task.reward_options.items()
        ]
    for name, options in parts:
        rule: object = resolve_reward(name, options=options) if name in REWARDS else None
        if isinstance(rule, ReferenceReader):
            yield name, rule


def can_read(reader: ReferenceReader, task: Mapping[str, Any]) -> bool:
    """True if a rule can read the reference of a task."""
    try:
        reader.read_reference(task)
    except RewardError:
        return False
    return True
