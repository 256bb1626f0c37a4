"""The reward of a policy at the end of an episode, from that of the run whose agent called it."""

from __future__ import annotations

from collections.abc import Mapping

from areal_actors.core.policy_settings import METRIC


def policy_reward(setting: str, reward: float, metrics: Mapping[str, float]) -> float | None:
    """Returns the reward by `policies.NAME.reward`; None if the episode lacks the metric that it names."""
    if setting.startswith(METRIC):
        return metrics.get(setting.removeprefix(METRIC))
    return -reward if setting == "opposite" else reward
