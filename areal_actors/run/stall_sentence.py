"""Describes the waits of a run's actors and the weights they serve, as parts of a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from areal_actors.messages import Heartbeat, Wait

INFERENCE_WORKER = "inference_worker"
LOADING = "loading weight version"
"""Prefix of the name of the wait for weights to be loaded."""
SLOW_LOAD_SECONDS = 2.0
"""Weights published longer ago and not loaded are mentioned."""
WAITS_SHOWN = 2
LIMITS = {
    "none": "no limit reached",
    "staleness": "limit reached: staleness_gate.max_staleness",
    "concurrency": "limit reached: staleness_gate.max_concurrent",
    "steps": "enough groups are running for the remaining steps",
    "baseline": "waiting for the evaluation before the first step",
    "evaluation": "waiting for an evaluation",
    "weights": "waiting for weights to be loaded",
    "stopped": "the run is stopping",
}
"""Reason why the staleness gate grants no more groups, by the bound in its status."""


class ReceivedBeat(NamedTuple):
    """A heartbeat with the times of receipt (watcher's clock) and sending (sender's clock, seconds since the epoch)."""

    beat: Heartbeat
    at: float
    sent: float

    def waited(self, wait: Wait, now: float) -> float:
        """Returns the duration of a wait until now; clocks of two machines are never compared."""
        return max(self.sent - wait.since, 0.0) + now - self.at


class WeightVersions:
    """Publication time of each weight version, and the version loaded by each inference worker."""

    def __init__(self) -> None:
        self.published_at: dict[int, float] = {}
        self.loaded: dict[str, int] = {}

    def published(self, version: int, now: float) -> None:
        """Note a published version; forget versions that every worker has passed."""
        self.published_at.setdefault(version, now)
        oldest = min(self.loaded.values(), default=-1)
        self.published_at = {known: at for known, at in self.published_at.items() if known > oldest or known == version}

    def worker_gone(self, worker: str) -> None:
        """Forget a worker that has failed or stopped."""
        self.loaded.pop(worker, None)

    def none_served(self) -> bool:
        """Returns True if weights were published but no inference worker serves any: that wait has its own deadline."""
        return bool(self.published_at) and not self.loaded

    def behind(self, beats: Mapping[str, ReceivedBeat], now: float) -> Iterator[str]:
        """Yields one part per inference worker that does not serve the newest version, with its loading time."""
        newest = max(self.published_at, default=-1)
        for actor, received in sorted(beats.items()):
            if not actor.startswith(INFERENCE_WORKER):
                continue
            served = self.loaded.get(actor, -1)
            lacking = [at for version, at in self.published_at.items() if version > served]
            if lacking and now - min(lacking) >= SLOW_LOAD_SECONDS:
                serves = f"still serves weight version {served}" if served >= 0 else "serves no weights yet"
                yield f"{actor} {serves} while version {newest} was published {now - self.published_at[newest]:.0f} s ago"
            for wait in received.beat.waits:
                if wait.name.startswith(LOADING) and (seconds := received.waited(wait, now)) >= SLOW_LOAD_SECONDS:
                    yield f"{actor}: {wait.name} has taken {seconds:.0f} s"


def waiting_for(beats: Mapping[str, ReceivedBeat], now: float) -> Iterator[str]:
    """Yields one part for each actor that is busy or waiting."""
    if gate := _status(beats, "staleness_gate"):
        yield (
            f"the staleness gate ({LIMITS.get(str(gate['bound']), str(gate['bound']))}) has {gate['running']:g} groups running, "
            f"{gate['complete']:g} complete and {gate['in_batch']:g} in training at weight version {gate['weight_version']:g}"
        )
    if batcher := _status(beats, "batcher"):
        yield f"the batcher has {batcher['complete_groups']:g} complete groups of the {batcher['batch_size']:g} of a batch"
    if source := _status(beats, "example_source"):
        yield f"the example source has drawn the examples of {source['steps_drawn']:g} steps"
    for actor, received in sorted(beats.items()):
        doing = [f"handles {count} {name}" for name, count in received.beat.handling.items()]
        longest = sorted(received.beat.waits, key=lambda wait: wait.since)[:WAITS_SHOWN]
        waits = [f"waits for {wait.name} since {received.waited(wait, now):.0f} s" for wait in longest]
        if doing or waits:
            yield f"{actor} {', '.join(doing + waits)}"


def _status(beats: Mapping[str, ReceivedBeat], kind: str) -> Mapping[str, float | str] | None:
    return next((received.beat.status for actor, received in beats.items() if actor.startswith(kind)), None)
