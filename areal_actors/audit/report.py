"""The report of `areal-actors audit`: counts, every fault with its position in the log, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.audit.audit import Audit
from areal_actors.messages.episode_ends import EpisodeCounts


def report(audit: Audit) -> str:
    """Returns the report as text."""
    return "\n".join([*_counts(audit), *_faults(audit), f"audit: {audit.verdict()}"])


def _counts(audit: Audit) -> Iterator[str]:
    launches = f"{audit.lives} launches" if audit.lives > 1 else "1 launch"
    injected = f", {audit.injected} injected faults" if audit.injected else ""
    ended = (
        "live or killed"
        if audit.finished is None
        else f"ended early: {audit.finished.error}"
        if audit.finished.error
        else "finished"
    )
    yield f"log           {audit.sequence:,} events of {launches}{injected}; {ended}"
    yield f"steps         {audit.steps} completed, each once and in order" + _sequences(audit)
    if (sessions := audit.sessions).checked + sessions.mixed:
        yield f"sessions      {sessions.checked:,} with the one version of their start, {sessions.mixed:,} with others"
    if audit.learns_from_examples() or audit.is_served():
        return
    groups = audit.groups
    yield _episodes(audit.counts)
    waiting = len(groups.under_way)
    yield (
        f"groups        {groups.granted:,} granted = {groups.trained_groups:,} trained + {groups.dropped_groups:,}"
        f" dropped + {groups.abandoned_groups:,} abandoned + {waiting:,} in flight"
    )
    if audit.sources.weights:
        yield f"sources       {audit.sources.describe(groups.granted)}"
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(groups.dropped_for.items()))
    yield (
        f"trajectories  {groups.exported:,} exported = {groups.trained:,} in batches + {groups.dropped:,} dropped"
        f"{f' ({reasons})' if reasons else ''} + {groups.waiting_trajectories():,} in flight"
    )
    loaded = sum(version.loaded > 0 for version in audit.versions.values())
    again = sum(version.published > 1 for version in audit.versions.values())
    proved = sum(version.proved for version in audit.versions.values())
    yield (
        f"versions      {len(audit.versions):,} published; {loaded:,} loaded by inference workers, {again:,} published"
        f" again, {proved:,} recomputed from the log, each with the same checksum"
    )


def _episodes(counts: EpisodeCounts) -> str:
    """Returns how the episodes ended, each counted once."""
    ends = {
        "exported": counts.exported,
        "evaluated": counts.evaluated,
        "given up": counts.given_up,
        "rejected": counts.rejected_episodes,
        "surplus when the last batch was formed": counts.surplus_running,
    }
    parts = " + ".join(f"{number:,} {end}" for end, number in ends.items() if number or end in {"exported", "given up"})
    failed = f"; failed attempts: {counts.failures():,}"
    repeated = f"; repeated ends, not counted: {counts.repeated:,}" if counts.repeated else ""
    return f"episodes      {counts.episodes:,} ended = {parts}{failed}{repeated}"


def _sequences(audit: Audit) -> str:
    return (
        f"; the sequences of {audit.sequences_checked} rebuilt from the log, each with the same checksum"
        if audit.sequences_checked
        else ""
    )


def _faults(audit: Audit) -> Iterator[str]:
    for fault in audit.all_faults():
        yield f"FAULT  {fault}"
    if audit.more_faults:
        yield f"FAULT  and {audit.more_faults} more"
