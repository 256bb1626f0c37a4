"""AReaL's `workflow_context`: the running episode, as functions of a module."""

from __future__ import annotations

from areal_actors.rollout.episode_context import EpisodeContext
from areal_actors.rollout.episode_context import workflow_context as _current

__all__ = ["get", "stat_scope"]


def get() -> EpisodeContext:
    """The running episode: `is_eval`, `task_id` (a text), and more; outside of one all fields are empty."""
    return _current.get()


def stat_scope() -> str:
    """Name of the tracker of `stats_tracker` for the running episode: `eval-rollout` in evaluation, else `rollout`."""
    return "eval-rollout" if get().is_eval else "rollout"
