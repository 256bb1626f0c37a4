"""Role-wise baselines: a moving average of the rewards of each role, over the episodes of the batches in their order.

Role-conditioned advantage estimation (RAE; arXiv:2506.24119, section 3.3): each role p of each game G has the baseline

    A = R - b(G, p)        then        b(G, p) <- decay * b(G, p) + (1 - decay) * R

which begins at 0. An episode is compared with the baseline before its own update, which keeps the gradient unbiased, as
in the authors' code. The baselines are a fold over the log: `BatchFormed` has those of each episode.
"""

from __future__ import annotations

from collections.abc import Mapping

from areal_actors.core.values import Trajectory
from areal_actors.sequences.credit import Credit, baseline_name, call_rewards, mean


def role_rewards(trajectory: Trajectory, credit: Credit) -> dict[str, float]:
    """Returns the mean R of the trained calls of each role of an episode, by the name of the role's baseline."""
    rewards, by_name = call_rewards(trajectory, credit), dict[str, list[float]]()
    for call in trajectory.interactions:
        if call.trained:
            by_name.setdefault(baseline_name(trajectory, call, credit), []).append(rewards[call.id])
    return {name: mean(received) for name, received in sorted(by_name.items())}


def update_baselines(baselines: dict[str, float], rewards: Mapping[str, float], decay: float) -> dict[str, float]:
    """Returns the baselines of an episode, and moves them to its rewards in `baselines`; both by name."""
    before = {name: baselines.get(name, 0.0) for name in rewards}
    for name, reward in rewards.items():
        baselines[name] = decay * before[name] + (1.0 - decay) * reward
    return before
