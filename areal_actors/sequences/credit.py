"""Credit assignment on a conversation tree: R(call), the return of each model call of an episode.

With `task.turn_discount` γ (leaves first; the parent of a call is the call whose conversation it continues):

    R(call) = r(call) + γ · mean of R over the calls that continue it        r(call) = 0 without a reward of its own

Without it nothing is summed. R(call) is

    1. the reward set for the call, or else
    2. the mean of R over the calls that continue it, or else
    3. the reward of the episode

so a single reward applies to every call of the episode, and a reward by interaction id to its call and, through 2, to earlier
calls without their own. `turn_discount = 1.0` sums rewards along the conversation, as AReaL does.

Only completed calls are interactions. Nothing is changed in place: a trajectory keeps the rewards that were set, and returns
are computed wherever they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import Literal

import msgspec

from areal_actors.core.settings import TaskSettings
from areal_actors.core.values import Interaction, Trajectory
from bus.message import FrozenMeta

BranchCredit = Literal["mean", "sum"]
ExportStyle = Literal["concat", "individual"]
BaselineOver = Literal["episodes", "calls"]


class Credit(msgspec.Struct, metaclass=FrozenMeta):
    """Settings that map the rewards of an episode to its calls, and its calls to sequences."""

    discount: float | None = None
    """Discount γ per turn; None: see above."""
    branch: BranchCredit = "mean"
    """Aggregation over the calls that continue the same call, with a discount."""
    style: ExportStyle = "concat"
    """`concat`: a sequence per path of calls whose tokens extend each other. `individual`: a sequence per call."""
    baseline_over: BaselineOver = "episodes"
    """Unit of group statistics: each episode once, or each call once (process rewards)."""

    @classmethod
    def of(cls, task: TaskSettings) -> Credit:
        """Read from the recipe's `[task]`."""
        return cls(discount=task.turn_discount, branch=task.branch_credit, style=task.export_style, baseline_over=task.baseline_over)


def discounted_returns(interactions: Sequence[Interaction], discount: float, branch: BranchCredit = "mean") -> dict[str, float]:
    """R(call) with a discount, by interaction id; independent of the order of the interactions.

    An interaction whose parent is missing counts as the first of a conversation.
    """

    def reward(call: Interaction, later: list[float]) -> float:
        together = mean(later) if branch == "mean" else fsum(later)
        return (call.reward or 0.0) + discount * together

    return _leaves_first(interactions, reward)


def call_rewards(trajectory: Trajectory, credit: Credit) -> dict[str, float]:
    """R(call) of every interaction of a trajectory, by id."""
    if credit.discount is not None:
        return discounted_returns(trajectory.interactions, credit.discount, credit.branch)

    def reward(call: Interaction, later: list[float]) -> float:
        if call.reward is not None:
            return call.reward
        return mean(later) if later else trajectory.reward

    return _leaves_first(trajectory.interactions, reward)


def _leaves_first(interactions: Sequence[Interaction], reward: Callable[[Interaction, list[float]], float]) -> dict[str, float]:
    """R of every call, computed from its own interaction and the R of the calls that continue it."""
    known = {call.id: call for call in interactions}
    children: dict[str, list[str]] = {identifier: [] for identifier in known}
    todo: list[str] = []
    for call in interactions:
        (children[call.parent] if call.parent in known else todo).append(call.id)
    parents_first: list[str] = []
    while todo:
        parents_first.append(todo.pop())
        todo.extend(children[parents_first[-1]])
    rewards: dict[str, float] = {}
    for identifier in reversed(parents_first):
        rewards[identifier] = reward(known[identifier], [rewards[child] for child in children[identifier]])
    return rewards


def mean(values: Sequence[float]) -> float:
    """Mean, 0 for no values; exact for equal values, so that equal rewards stay equal, and independent of the order."""
    if not values:
        return 0.0
    least = min(values)
    return least + fsum(value - least for value in values) / len(values)


def sample_rewards(trajectory: Trajectory, credit: Credit) -> tuple[float, ...]:
    """Rewards that a trajectory contributes to the statistics of its group.

    A single one, the mean of R over its trained calls; with `baseline_over = "calls"` R of each trained call.
    """
    rewards = call_rewards(trajectory, credit)
    trained = [rewards[call.id] for call in trajectory.interactions if call.trained]
    return tuple(trained) if credit.baseline_over == "calls" else (mean(trained),)


def sequence_ends(interactions: Sequence[Interaction], style: ExportStyle) -> list[Interaction]:
    """Last interactions of sequences: every trained one, or those whose tokens no other trained one extends."""
    trained = [call for call in interactions if call.trained]
    if style == "individual":
        return trained
    by_id = {call.id: call for call in interactions}
    extended: set[str] = set()
    for call in trained:
        prefix = call.prefix
        while prefix and prefix not in extended:
            extended.add(prefix)
            prefix = by_id[prefix].prefix
    return [call for call in trained if call.id not in extended]
