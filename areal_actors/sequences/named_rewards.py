"""The named rewards of an episode, of which its reward is the weighted sum, assigned to its calls as the sum itself is.

The score of a text is the reward of the last trained call, and `task.turn_discount` carries it to earlier ones:
R_k(call) of the reward named k is its value times R(call) of a score of 1. Without a discount a score belongs to all
calls. Rewards that agents set for single calls have no name.
"""

from __future__ import annotations

import math

import msgspec

from areal_actors.core.named_reward import NamedReward
from areal_actors.core.values import Trajectory
from areal_actors.sequences.credit import Credit, discounted_returns


def named_call_rewards(trajectory: Trajectory, credit: Credit, scored: str) -> dict[str, tuple[NamedReward, ...]]:
    """Returns the named rewards of each call of a trajectory, by id of the call; empty if the recipe names none.

    `scored` is the call that has the score of the text. A reward that an episode does not have is 0 if the model ended
    the episode, which then has no score, else NaN.
    """
    if not credit.reward_weights:
        return {}
    missing = 0.0 if trajectory.ended_by == "model" else math.nan
    values = {name: trajectory.metrics.get(name, missing) for name, _ in credit.reward_weights}
    shares = _shares_of_score(trajectory, credit, scored)
    return {
        call: tuple(
            NamedReward(name=name, reward=values[name] * share, weight=weight) for name, weight in credit.reward_weights
        )
        for call, share in shares.items()
    }


def _shares_of_score(trajectory: Trajectory, credit: Credit, scored: str) -> dict[str, float]:
    """Returns R(call) of a score of 1."""
    if credit.discount is None:
        return {call.id: 1.0 for call in trajectory.interactions}
    calls = [
        msgspec.structs.replace(call, reward=1.0 if call.id == scored else None) for call in trajectory.interactions
    ]
    return discounted_returns(calls, credit.discount, credit.branch)
