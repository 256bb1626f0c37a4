"""The comparison of a candidate with the served version, as text or JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from areal_actors.canary.trial import CandidateTrial
from areal_actors.canary.verdict import CandidateVerdict
from areal_actors.messages import ComparedMetric

HEAD = ("", "candidate", "serving", "difference", "lower", "upper", "pairs")


def describe_comparison(
    trial: CandidateTrial, verdict: CandidateVerdict, evidence: Sequence[str] = (), *, as_json: bool = False
) -> str:
    """Returns the figures of both versions with their limits, further sentences of evidence, and the verdict."""
    at = trial.published
    assert at is not None
    metrics, (candidate, serving) = trial.metrics(), trial.rewarded()
    if as_json:
        fields = {
            "candidate_version": at.weight_version,
            "serving_version": at.serving_version,
            "mode": at.mode,
            "share": at.share,
            "rewarded_sessions": {"candidate": candidate, "serving": serving},
            "metrics": metrics,
            "evidence": list(evidence),
            "decision": verdict.decision,
            "reason": verdict.reason,
            "sessions_needed": verdict.needed,
        }
        return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n"
    level = f"{1 - at.significance:.0%}".replace("%", " %")
    title = f"candidate version {at.weight_version} ({at.location.folder}), {at.mode} with a share of {at.share:g}"
    lines = (
        f"{title}, against version {at.serving_version}",
        f"rewarded sessions: {candidate} of the candidate, {serving} of the served version",
        _table(metrics),
        f"each limit holds with {level} at all times, however often it is looked at",
        *evidence,
        _describe_verdict(verdict),
    )
    return "\n".join(lines) + "\n"


def _table(metrics: tuple[ComparedMetric, ...]) -> str:
    rows = [HEAD, *(_row(metric) for metric in metrics)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _row(metric: ComparedMetric) -> tuple[str, ...]:
    figures = (f"{metric.difference:+.3f}", f"{metric.low:+.3f}", f"{metric.high:+.3f}")
    return (metric.name, f"{metric.candidate:.3f}", f"{metric.serving:.3f}", *figures, str(metric.pairs))


def _describe_verdict(verdict: CandidateVerdict) -> str:
    if verdict.decision is not None:
        return f"{verdict.decision}: {verdict.reason}"
    missing = "more sessions" if verdict.needed is None else f"about {verdict.needed:,} more sessions"
    return f"not decided: {verdict.reason}; missing: {missing}"
