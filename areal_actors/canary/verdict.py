"""The verdict on a candidate by its comparison: promotion, rollback, or how many more sessions it takes."""

from __future__ import annotations

from typing import NamedTuple

from areal_actors.canary.comparison import block_sizes
from areal_actors.canary.trial import REWARD, CandidateTrial
from areal_actors.messages import CandidateDecided, CandidatePublished, ComparedMetric, Decision


class CandidateVerdict(NamedTuple):
    """A decision that the figures show, or what is missing for one."""

    decision: Decision | None
    reason: str
    needed: int | None = None
    """Further sessions, of both versions together, that a decision is expected to take; None if that is unknown."""


def judge_candidate(trial: CandidateTrial) -> CandidateVerdict:
    """Returns what the sessions so far show of a candidate that is not decided."""
    at = trial.published
    assert at is not None
    metrics = {metric.name: metric for metric in trial.metrics()}
    for name, limit in at.limits.items():
        if metrics[name].low >= limit:
            return CandidateVerdict("rolled back", f"{_describe(metrics[name])}, above its limit of {limit:+g}")
    if at.mode == "shadow" and not trial.comparisons[REWARD].test.count:
        remedy = "judge them with --reward FILE.py:FUNCTION, or serve it as a canary to compare rewards"
        return CandidateVerdict(None, f"users judge no answers of a shadow: {remedy}")
    if min(trial.rewarded()) < at.least_sessions:
        return _too_few(trial, at)
    return _judge_rewards(trial, at, metrics)


def _judge_rewards(
    trial: CandidateTrial, at: CandidatePublished, metrics: dict[str, ComparedMetric]
) -> CandidateVerdict:
    reward = metrics[REWARD]
    if reward.high <= 0:
        return CandidateVerdict("rolled back", f"{_describe(reward)}: it is worse")
    if unshown := [name for name, limit in at.limits.items() if metrics[name].high > limit]:
        names = ", ".join(f"{_describe(metrics[name])}, limit {at.limits[name]:+g}" for name in unshown)
        return CandidateVerdict(
            None, f"it is not shown that these stay below their limits: {names}", _count_missing(trial, unshown)
        )
    if reward.low >= at.least_difference:
        return CandidateVerdict("promoted", f"{_describe(reward)}: more than {at.least_difference:+g}")
    return CandidateVerdict(None, _describe_undecided(reward, at), _count_missing(trial, []))


def _too_few(trial: CandidateTrial, at: CandidatePublished) -> CandidateVerdict:
    fewest = min(trial.rewarded())
    served, own = block_sizes(at.share)
    reason = f"{fewest} sessions of one version have a reward; at least {at.least_sessions} of each are needed"
    missing = at.least_sessions - fewest
    if at.mode == "shadow":
        return CandidateVerdict(None, reason, missing)
    return CandidateVerdict(None, reason, -(-missing // min(served, own)) * (served + own))


def decide(trial: CandidateTrial) -> CandidateDecided | None:
    """Returns the event of the decision that the sequential test takes now; None if there is none to take."""
    if not trial.is_open() or trial.published is None or trial.published.mode != "canary":
        return None
    verdict = judge_candidate(trial)
    return decided_event(trial, verdict.decision, verdict.reason) if verdict.decision is not None else None


def decided_event(trial: CandidateTrial, decision: Decision, reason: str) -> CandidateDecided:
    """Returns the event of a decision, with the figures as they are now."""
    assert trial.published is not None
    return CandidateDecided(
        weight_version=trial.published.weight_version,
        serving_version=trial.published.serving_version,
        decision=decision,
        reason=reason,
        metrics=trial.metrics(),
        sessions=trial.rewarded(),
    )


def _describe(metric: ComparedMetric) -> str:
    return f"the difference in {metric.name} is {metric.difference:+.3f} ({metric.low:+.3f} to {metric.high:+.3f})"


def _describe_undecided(reward: ComparedMetric, at: CandidatePublished) -> str:
    return f"{_describe(reward)}: neither all below 0 nor all above {at.least_difference:+g}"


def _count_missing(trial: CandidateTrial, guards: list[str]) -> int | None:
    """Returns the sessions that are missing if the next ones are like those so far."""
    at = trial.published
    assert at is not None
    test = trial.comparisons[REWARD].test
    scale = trial.comparisons[REWARD].scale
    better = test.count_needed(at.least_difference / scale, above=True)
    worse = test.count_needed(0.0, above=False)
    guarded = [trial.comparisons[name].test.count_needed(at.limits[name], above=False) for name in guards]
    promoted = None if better is None or None in guarded else max([better, *(pairs or 0 for pairs in guarded)])
    ways = [pairs for pairs in (promoted, worse) if pairs]
    in_pair = 1 if at.mode == "shadow" else sum(block_sizes(at.share))
    return min(ways) * in_pair if ways else None
