"""Facts about the run of a recipe that parts ask for beside their tables, to find problems in it."""

from __future__ import annotations

from typing import Literal, NamedTuple


class RunFacts(NamedTuple):
    """Facts about the run of a recipe, for checks of parts."""

    is_serving: bool
    """`areal-actors serve`: its model answers agents, and nothing is trained."""
    learns_from_examples: bool
    is_online: bool
    """External agents bring its tasks."""
    plays_environment: bool
    """An environment brings its tasks, agents and rewards."""
    absent: frozenset[str]
    """Actors that it does not have."""
    group_size: int
    """Episodes of a group."""
    is_served: bool
    """It has no trainer."""
    examples: Literal["demonstrations", "pairs", "sessions"]
    """Kind of the examples, if it learns from examples."""

    def has_episodes(self) -> bool:
        """Returns True if it trains on episodes."""
        return not self.is_serving and not self.learns_from_examples

    def trains_examples(self) -> bool:
        """Returns True if it trains on examples."""
        return not self.is_serving and self.learns_from_examples
