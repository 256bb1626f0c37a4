"""Credit along a conversation tree: R(call), the reward of each model call of an episode, given what came after it.

With `task.turn_discount` γ (leaves first; the parent of a call is the call whose conversation it continues):

    R(call) = r(call) + γ · mean of R over the calls that continue it        r(call) = 0 without a reward of its own

Without it nothing is added up. A call has

    1. the reward that was set for it, or else
    2. the mean of R over the calls that continue it, or else
    3. the reward of the episode

so that one reward belongs to every call of the episode, and rewards by interaction id to their own calls. They do not reach
calls before them that have a reward of their own; `turn_discount = 1.0` adds them up along the conversation, as AReaL does.

Only completed calls are interactions, so nothing else takes part. Nothing is changed in place: the rewards of a trajectory
stay what they were set to, and credit is taken anew wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import Literal

import msgspec

from areal_actors.settings import TaskSettings
from areal_actors.values import Interaction, Trajectory
from bus.message import FrozenMeta

BranchCredit = Literal["mean", "sum"]
ExportStyle = Literal["concat", "individual"]
BaselineOver = Literal["episodes", "calls"]


class Credit(msgspec.Struct, metaclass=FrozenMeta):
    """How the rewards of an episode become those of its calls, and its calls become rows."""

    discount: float | None = None
    """Share of the reward of the calls that continue a call which that call inherits; None: see above."""
    branch: BranchCredit = "mean"
    """How the calls that continue one and the same call count together, under a discount."""
    style: ExportStyle = "concat"
    """`concat`: a row per path of calls whose tokens extend each other. `individual`: a row per call."""
    baseline_over: BaselineOver = "episodes"
    """What statistics of a group count: each episode once, or each call once (process rewards)."""

    @classmethod
    def of(cls, task: TaskSettings) -> Credit:
        """As the recipe's `[task]` says."""
        return cls(discount=task.turn_discount, branch=task.branch_credit, style=task.export_style, baseline_over=task.baseline_over)


def credited(interactions: Sequence[Interaction], discount: float, branch: BranchCredit = "mean") -> dict[str, float]:
    """R(call) under a discount, by interaction id; the same whatever the order of the interactions.

    An interaction whose parent is not among them counts as the first of a conversation.
    """

    def reward(call: Interaction, later: list[float]) -> float:
        together = mean(later) if branch == "mean" else fsum(later)
        return (call.reward or 0.0) + discount * together

    return _leaves_first(interactions, reward)


def call_rewards(trajectory: Trajectory, credit: Credit) -> dict[str, float]:
    """R(call) of every interaction of a trajectory, by id."""
    if credit.discount is not None:
        return credited(trajectory.interactions, credit.discount, credit.branch)

    def reward(call: Interaction, later: list[float]) -> float:
        if call.reward is not None:
            return call.reward
        return mean(later) if later else trajectory.reward

    return _leaves_first(trajectory.interactions, reward)


def _leaves_first(interactions: Sequence[Interaction], reward: Callable[[Interaction, list[float]], float]) -> dict[str, float]:
    """R of every call from its own interaction and the R of those that continue it."""
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
    """Mean, 0 of nothing; of equal values it is that value exactly, so that equal rewards stay equal, and independent of the order."""
    if not values:
        return 0.0
    least = min(values)
    return least + fsum(value - least for value in values) / len(values)


def sample_rewards(trajectory: Trajectory, credit: Credit) -> tuple[float, ...]:
    """Values that a trajectory contributes to the statistics of its group.

    One, the mean of R over its trained calls; with `baseline_over = "calls"` R of each of them.
    """
    rewards = call_rewards(trajectory, credit)
    trained = [rewards[call.id] for call in trajectory.interactions if call.trained]
    return tuple(trained) if credit.baseline_over == "calls" else (mean(trained),)


def row_ends(interactions: Sequence[Interaction], style: ExportStyle) -> list[Interaction]:
    """Interactions with which rows end: every trained one, or those whose tokens no other trained one's extend."""
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
