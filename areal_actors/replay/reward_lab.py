"""Changes by another reward in a recorded run, with error bars.

Rewards, rankings within groups, signs of advantages, and the next step. To first order, a step of natural policy
gradient with advantages a changes the mean of any figure h of an episode by η·Cov(a, h), given the task, and has a KL
divergence of η²·Var(a)/2 per episode. So at a given divergence the change is √(2·KL)·Cov(a, h)/√Var(a), which needs
neither model nor gradient: only advantages and figures of the recorded episodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from areal_actors.core.values import Trajectory
from areal_actors.replay.group_bootstrap import Interval, Statistic, Totals, group_intervals
from areal_actors.replay.rescore import ROUNDING

STEP_KL = 0.01
"""Divergence of the next step, in nats per episode."""
COLUMNS = (
    *("episodes", "was", "now", "groups", "flips", "gains", "loses", "trained", "signs"),
    *("was²", "now²", "was·now"),
    *(f"{side}·{figure}" for side in ("was", "now") for figure in ("was_reward", "now_reward", "tokens")),
)
PLACE = {name: place for place, name in enumerate(COLUMNS)}
RANGES = {
    **dict.fromkeys(("groups_flipped", "groups_with_new_signal", "groups_without_old_signal"), (0.0, 1.0)),
    "signs_changed": (0.0, 1.0),
    "steps_agree": (-1.0, 1.0),
}
LABELS = {
    "groups_flipped": "groups whose ranking flips",
    "groups_with_new_signal": "groups that gain a signal",
    "groups_without_old_signal": "groups that lose theirs",
    "signs_changed": "episodes whose advantage changes sign",
    "steps_agree": "cosine of both advantages",
}
NEXT_STEP = {"was_reward": "recorded reward", "now_reward": "new reward", "tokens": "sampled tokens"}


class RewardLab(msgspec.Struct, frozen=True):
    """Figures with their 95 % intervals, from resampled groups."""

    groups: int
    """Groups with episodes that have both rewards."""
    episodes: int
    trained: int
    """Episodes with an advantage on both sides."""
    figures: dict[str, Interval]

    def lines(self) -> Iterator[str]:
        """Yields the figures as a table."""
        unit = "groups" if self.episodes > self.groups else "sessions"
        yield (
            f"reward lab: {self.episodes:,} episodes of {self.groups:,} {unit}, with 95 % intervals from resampled"
            f" {unit}"
        )
        row = "{:<40}  {:>26}  {:>26}  {:>26}".format
        yield row("", "recorded", "what if", "difference").rstrip()
        yield row("mean reward", *(_cell(self.figures[name]) for name in ("was", "now", "difference")))
        for name, label in LABELS.items():
            if not math.isnan(self.figures[name].value):
                show = _cell if name == "steps_agree" else _percent
                yield row(label, "", show(self.figures[name]), "").rstrip()
        if math.isnan(self.figures["next/now/now_reward"].value):
            return
        yield f"predicted change by the next step, at a KL divergence of {STEP_KL:g} per episode"
        for name, label in NEXT_STEP.items():
            cells = (_cell(self.figures[f"next/{side}/{name}"], sign="+") for side in ("was", "now"))
            yield row(f"  of the {label}", *cells, "").rstrip()


def compare_rewards(
    was: Mapping[int, Trajectory],
    now: Mapping[int, Trajectory],
    was_advantages: Mapping[str, float],
    now_advantages: Mapping[str, float],
) -> RewardLab:
    """Returns the comparison of two rewards of the same episodes.

    Args:
        was: trajectories as recorded, by their positions in the log.
        now: the same with the other reward; one that it failed on is missing.
        was_advantages: mean advantage of the tokens of each trained episode, by name.
        now_advantages: the same with the other reward.
    """
    pairs = [(before, now[place]) for place, before in was.items() if place in now]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(before.group for before, _ in pairs))}
    groups = np.array([numbers[before.group] for before, _ in pairs], np.int64)
    columns = {
        "was_reward": np.array([before.reward for before, _ in pairs], np.float64),
        "now_reward": np.array([after.reward for _, after in pairs], np.float64),
        "tokens": np.array([before.sampled_tokens() for before, _ in pairs], np.float64),
        "was": np.array([was_advantages.get(before.episode, math.nan) for before, _ in pairs], np.float64),
        "now": np.array([now_advantages.get(before.episode, math.nan) for before, _ in pairs], np.float64),
    }
    trained = np.isfinite(columns["was"]) & np.isfinite(columns["now"])
    sums = group_sums(groups, columns, trained, len(numbers))
    figures = group_intervals(sums, STATISTICS, ranges=RANGES)
    return RewardLab(len(numbers), len(pairs), int(trained.sum()), figures)


def group_sums(
    groups: NDArray[np.int64], columns: Mapping[str, NDArray[np.float64]], trained: NDArray[np.bool_], count: int
) -> Totals:
    """Returns the sums of `COLUMNS` over each group: float64 `[count, columns]`.

    Args:
        groups: int64 `[episodes]`, from 0.
        columns: float64 `[episodes]` each: rewards and advantages of both sides, and sampled tokens.
        trained: bool `[episodes]`; advantages of others are not read.
        count: number of groups.
    """

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        totals: NDArray[np.float64] = np.bincount(groups, weights=values, minlength=count).astype(np.float64)
        return totals

    sums = np.zeros((count, len(COLUMNS)))
    episodes = total(np.ones(len(groups)))
    sums[:, PLACE["episodes"]], sums[:, PLACE["groups"]] = episodes, 1.0
    sums[:, PLACE["was"]], sums[:, PLACE["now"]] = total(columns["was_reward"]), total(columns["now_reward"])
    for name, values in _changed_rankings(groups, columns["was_reward"], columns["now_reward"], count).items():
        sums[:, PLACE[name]] = values
    inside = trained.astype(np.float64)
    members = total(inside)
    sums[:, PLACE["trained"]] = members

    def centred(name: str) -> NDArray[np.float64]:
        values = np.where(trained, columns[name], 0.0)
        return (values - (total(values) / np.maximum(members, 1))[groups]) * inside

    deviations = {name: centred(name) for name in columns}
    signs = [np.where(np.abs(deviations[side]) > ROUNDING, np.sign(deviations[side]), 0.0) for side in ("was", "now")]
    sums[:, PLACE["signs"]] = total((signs[0] * signs[1] < 0).astype(np.float64))
    unbiased = members / np.maximum(members - 1, 1)
    for name in (name for name in COLUMNS if "·" in name):
        first, second = name.split("·")
        sums[:, PLACE[name]] = total(deviations[first] * deviations[second]) * unbiased
    for side in ("was", "now"):
        sums[:, PLACE[f"{side}²"]] = total(deviations[side] ** 2) * unbiased
    return sums


def _changed_rankings(
    groups: NDArray[np.int64], was: NDArray[np.float64], now: NDArray[np.float64], count: int
) -> dict[str, NDArray[np.bool_]]:
    """Groups in which two episodes change places, all rewards were equal and differ now, or the other way round."""
    flips, gains, loses = (np.zeros(count, bool) for _ in range(3))
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(count + 1))
    for number in range(count):
        members = order[bounds[number] : bounds[number + 1]]
        before, after = was[members], now[members]
        had, has = np.ptp(before) > ROUNDING, np.ptp(after) > ROUNDING
        gains[number], loses[number] = has and not had, had and not has
        if had and has:
            flips[number] = _has_flipped_pair(before, after)
    return {"flips": flips, "gains": gains, "loses": loses}


def _has_flipped_pair(before: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
    """True if an episode with a lower reward than another has a higher one now.

    In the order of `before`, that is a reward of `after` below the highest one of episodes that came lower.
    """
    order = np.lexsort((after, before))
    highest, level_highest, level = -math.inf, -math.inf, before[order[0]]
    for place in order:
        if before[place] - level > ROUNDING:
            highest, level = max(highest, level_highest), before[place]
        if after[place] < highest - ROUNDING:
            return True
        level_highest = max(level_highest, after[place])
    return False


def _ratio(numerator: str, denominator: str) -> Statistic:
    return lambda totals: totals[..., PLACE[numerator]] / totals[..., PLACE[denominator]]


def _difference(totals: Totals) -> Totals:
    difference: Totals = (totals[..., PLACE["now"]] - totals[..., PLACE["was"]]) / totals[..., PLACE["episodes"]]
    return difference


def _cosine(totals: Totals) -> Totals:
    cosine: Totals = totals[..., PLACE["was·now"]] / np.sqrt(totals[..., PLACE["was²"]] * totals[..., PLACE["now²"]])
    return cosine


def _next_step(side: str, figure: str) -> Statistic:
    def change(totals: Totals) -> Totals:
        variance = totals[..., PLACE[f"{side}²"]] * totals[..., PLACE["trained"]]
        changed: Totals = math.sqrt(2 * STEP_KL) * totals[..., PLACE[f"{side}·{figure}"]] / np.sqrt(variance)
        return changed

    return change


STATISTICS: dict[str, Statistic] = {
    "was": _ratio("was", "episodes"),
    "now": _ratio("now", "episodes"),
    "difference": _difference,
    "groups_flipped": _ratio("flips", "groups"),
    "groups_with_new_signal": _ratio("gains", "groups"),
    "groups_without_old_signal": _ratio("loses", "groups"),
    "signs_changed": _ratio("signs", "trained"),
    "steps_agree": _cosine,
    **{f"next/{side}/{figure}": _next_step(side, figure) for side in ("was", "now") for figure in NEXT_STEP},
}


def _cell(interval: Interval, sign: str = "") -> str:
    return f"{interval.value:{sign}.3g} [{interval.low:{sign}.3g}, {interval.high:{sign}.3g}]"


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"
