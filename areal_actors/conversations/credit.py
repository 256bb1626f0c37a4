"""Credit along a conversation tree: what each model call of an episode is worth, given what came after it.

    R(call) = r(call) + discount · mean of R over the calls that continue it

Leaves first. A call without a reward of its own has r = 0; calls of unrelated conversations do not touch each other.
Only completed calls are interactions, so nothing else takes part. Nothing is changed in place: the rewards of a
trajectory stay what they were set to, and credit is taken anew wherever rows are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Literal

import msgspec

from areal_actors.values import Interaction, Trajectory
from bus.message import FrozenMeta

BranchCredit = Literal["mean", "sum"]
ExportStyle = Literal["concat", "individual"]


class Credit(msgspec.Struct, metaclass=FrozenMeta):
    """How the rewards of an episode become those of its rows."""

    discount: float | None = None
    """What a call inherits of the calls that continue it; None gives every row the reward of the whole episode."""
    branch: BranchCredit = "mean"
    """How the calls that continue one and the same call count together."""
    style: ExportStyle = "concat"
    """`concat`: a row per leaf path, worth what its leaf is. `individual`: a row per call, worth what that call is."""


def credited(interactions: Sequence[Interaction], discount: float, branch: BranchCredit = "mean") -> dict[str, float]:
    """What each interaction is worth, by id; the same whatever the order of the interactions.

    An interaction whose parent is not among them counts as the beginning of a conversation.
    """
    known = {turn.id for turn in interactions}
    children: dict[str, list[str]] = {turn.id: [] for turn in interactions}
    todo: list[str] = []
    for turn in interactions:
        (children[turn.parent] if turn.parent in known else todo).append(turn.id)
    parents_first: list[str] = []
    while todo:
        parents_first.append(todo.pop())
        todo.extend(children[parents_first[-1]])
    own = {turn.id: turn.reward or 0.0 for turn in interactions}
    worth: dict[str, float] = {}
    for identifier in reversed(parents_first):
        later = [worth[child] for child in children[identifier]]
        parts = len(later) if branch == "mean" else 1
        worth[identifier] = own[identifier] + (discount * fsum(later) / parts if later else 0.0)
    return worth


def row_ends(interactions: Sequence[Interaction], style: ExportStyle) -> list[Interaction]:
    """The interactions with which rows end: every one, or those that nothing continues."""
    if style == "individual":
        return list(interactions)
    parents = {turn.parent for turn in interactions}
    return [turn for turn in interactions if turn.id not in parents]


def row_rewards(trajectory: Trajectory, credit: Credit) -> dict[str, float]:
    """The reward of the row that ends with each interaction, by the interaction's id."""
    if credit.discount is None:
        return dict.fromkeys((turn.id for turn in trajectory.interactions), trajectory.reward)
    return credited(trajectory.interactions, credit.discount, credit.branch)
