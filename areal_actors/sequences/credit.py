"""Credit assignment: R(call), the return of each model call of an episode.

With `task.turn_discount` γ (last calls first):

    R(call) = r(call) + γ · mean of R over the calls that continue it        r(call) = 0 without a reward of its own

The calls that continue a call are those whose messages do, and where messages name none, those that followed it in time
(`sequences/credit_links.py`). With `branch_credit = "sum"` the rewards of all calls after a call are added, each once,
discounted by the fewest calls between. Without a discount nothing is summed, and a call is continued only by calls
whose messages continue it. R(call) is

    1. the reward set for the call, or else
    2. the mean of R over the calls that continue it, or else
    3. the reward of the episode

so a single reward applies to every call of the episode, and a reward by interaction id to its call and, through 2, to
earlier calls without their own. `turn_discount = 1.0` sums rewards along the conversation, as AReaL does.

Only completed calls are interactions. Nothing is changed in place: a trajectory keeps the rewards that were set, and
returns are computed wherever they are needed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import fsum
from typing import Literal

import msgspec

from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import Interaction, Trajectory
from areal_actors.sequences.credit_links import continuing_calls
from areal_bus.message import FrozenMeta

BranchCredit = Literal["mean", "sum"]
ExportStyle = Literal["concat", "individual"]
BaselineOver = Literal["episodes", "calls", "roles"]


class Credit(msgspec.Struct, metaclass=FrozenMeta):
    """Settings that map the rewards of an episode to its calls, and its calls to sequences."""

    discount: float | None = None
    """Discount γ per turn; None: see above."""
    branch: BranchCredit = "mean"
    """Aggregation over the calls that continue the same call, with a discount."""
    style: ExportStyle = "concat"
    """`concat`: a sequence per path of calls whose tokens extend each other. `individual`: a sequence per call."""
    baseline_over: BaselineOver = "episodes"
    """Unit of group statistics: each episode once, each call once (process rewards), or each role of an episode
    once."""
    reward_weights: tuple[tuple[str, float], ...] = ()
    """Names and weights of the rewards that make up the reward of an episode."""

    @classmethod
    def of(cls, task: TaskSettings) -> Credit:
        """Read from the recipe's `[task]`."""
        return cls(
            discount=task.turn_discount,
            branch=task.branch_credit,
            style=task.export_style,
            baseline_over=task.baseline_over,
            reward_weights=tuple(task.named_weights().items()),
        )


def discounted_returns(
    interactions: Sequence[Interaction], discount: float, branch: BranchCredit = "mean"
) -> dict[str, float]:
    """R(call) with a discount, by interaction id; independent of the order of the interactions.

    An interaction whose parent is missing counts as the first of a conversation.
    """
    continuing = continuing_calls(interactions)
    is_tree = len(set(chain.from_iterable(continuing.values()))) == sum(map(len, continuing.values()))
    if branch == "sum" and not is_tree:
        return {call.id: _discounted_sum(call, interactions, continuing, discount) for call in interactions}

    def reward(call: Interaction, later: list[float]) -> float:
        together = mean(later) if branch == "mean" else fsum(later)
        return (call.reward or 0.0) + discount * together

    return _last_first(interactions, continuing, reward)


def _discounted_sum(
    call: Interaction, interactions: Sequence[Interaction], continuing: Mapping[str, Sequence[str]], discount: float
) -> float:
    """Sum of the rewards of a call and of all calls after it, each once, discounted by the fewest links between."""
    rewards = {interaction.id: interaction.reward or 0.0 for interaction in interactions}
    distance = {call.id: 0}
    todo = deque([call.id])
    while todo:
        current = todo.popleft()
        for later in continuing[current]:
            if later not in distance:
                distance[later] = distance[current] + 1
                todo.append(later)
    return fsum(rewards[later] * discount**steps for later, steps in distance.items())


def calls_without_credit(trajectory: Trajectory, credit: Credit) -> frozenset[str]:
    """Trained calls that have no reward with a discount, as neither they nor any call after them has one.

    Empty without a discount.
    """
    if credit.discount is None:
        return frozenset()

    def is_credited(call: Interaction, later: list[float]) -> float:
        return float(call.reward is not None or any(later))

    credited = _last_first(trajectory.interactions, continuing_calls(trajectory.interactions), is_credited)
    return frozenset(call.id for call in trajectory.interactions if call.trained and not credited[call.id])


def call_rewards(trajectory: Trajectory, credit: Credit) -> dict[str, float]:
    """R(call) of every interaction of a trajectory, by id."""
    if credit.discount is not None:
        return discounted_returns(trajectory.interactions, credit.discount, credit.branch)

    def reward(call: Interaction, later: list[float]) -> float:
        if call.reward is not None:
            return call.reward
        return mean(later) if later else trajectory.reward

    children: dict[str, list[str]] = {call.id: [] for call in trajectory.interactions}
    for call in trajectory.interactions:
        if call.parent in children:
            children[call.parent].append(call.id)
    return _last_first(trajectory.interactions, children, reward)


def _last_first(
    interactions: Sequence[Interaction],
    continuing: Mapping[str, Sequence[str]],
    reward: Callable[[Interaction, list[float]], float],
) -> dict[str, float]:
    """R of every call, computed from its own interaction and the R of the calls that continue it."""
    by_id = {call.id: call for call in interactions}
    waiting = Counter(chain.from_iterable(continuing.values()))
    """Number of calls that each call continues and that are not in the order yet."""
    todo = [identifier for identifier in by_id if not waiting[identifier]]
    first_to_last: list[str] = []
    while todo:
        first_to_last.append(todo.pop())
        for later in continuing[first_to_last[-1]]:
            waiting[later] -= 1
            if not waiting[later]:
                todo.append(later)
    rewards: dict[str, float] = {}
    for identifier in reversed(first_to_last):
        rewards[identifier] = reward(by_id[identifier], [rewards[later] for later in continuing[identifier]])
    return rewards


def mean(values: Sequence[float]) -> float:
    """Mean, 0 for no values; exact for equal values, so that equal rewards stay equal, and independent of the order."""
    if not values:
        return 0.0
    least = min(values)
    return least + fsum(value - least for value in values) / len(values)


def sample_rewards(trajectory: Trajectory, credit: Credit) -> tuple[float, ...]:
    """Rewards that a trajectory contributes to the statistics of its group.

    A single one, the mean of R over its trained calls; with `baseline_over = "calls"` R of each trained call, with
    `"roles"` the mean of each role, in order of the roles' names.
    """
    rewards = call_rewards(trajectory, credit)
    if credit.baseline_over == "roles":
        by_role: dict[str, list[float]] = {}
        for call in trajectory.interactions:
            if call.trained:
                by_role.setdefault(call.role, []).append(rewards[call.id])
        return tuple(mean(received) for _, received in sorted(by_role.items()))
    trained = [rewards[call.id] for call in trajectory.interactions if call.trained]
    return tuple(trained) if credit.baseline_over == "calls" else (mean(trained),)


def baseline_name(trajectory: Trajectory, call: Interaction, credit: Credit) -> str:
    """Returns the name of the role-wise baseline of a call: source, role of the task, and with `"roles"` of the call.

    Parts that an episode lacks are left out; `all` if it has none.
    """
    role = call.role if credit.baseline_over == "roles" else ""
    return "/".join(part for part in (trajectory.source, trajectory.role, role) if part) or "all"


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
