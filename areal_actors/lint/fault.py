"""A cause for which a run may not learn, and the shares from which rules name one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from areal_actors.core.values import Value
from areal_actors.lint.first_episodes import FirstEpisodes
from areal_actors.recipe.recipe import Recipe

LEAST_EPISODES = 8
"""Episodes from which rules about shares apply."""
OFTEN = 0.25
"""Share of episodes, or of calls, from which a cause is named."""
SOMETIMES = 0.1
"""The same for tool calls that were lost."""
MOSTLY = 0.5
EPISODES_NAMED = 3


class LearningFault(Value):
    """A cause for which a run may not learn what was intended."""

    name: str
    sentence: str
    """Observation and remedy."""
    episodes: tuple[str, ...] = ()
    """Episodes to look at."""
    setting: str = ""
    """Setting to change; empty if the remedy is not in the recipe."""


Rule = Callable[[FirstEpisodes, Recipe], Iterator[LearningFault]]


def most_common(causes: Mapping[str, Sequence[str]]) -> tuple[str, Sequence[str]]:
    """Returns the cause with the most episodes, and these."""
    return max(causes.items(), key=lambda item: len(item[1]))


def some_of(episodes: Sequence[str]) -> tuple[str, ...]:
    """Returns the first episodes, each once."""
    return tuple(dict.fromkeys(episodes))[:EPISODES_NAMED]
