"""The watchdog: names the cause when a run makes no progress, and ends the run after too many failures.

Progress is a trained step, and everything that leads to the next one: a kept trajectory, sampled tokens, progress of a
trainer phase, loaded weights, a checkpoint, an evaluated episode. Discarded work is no progress, nor are tokens while
episodes fail. It only receives messages; time is given in seconds of `WatchClock.watching`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from areal_actors.core.command import COMMAND
from areal_actors.core.gateways import GATEWAY, gateway_name
from areal_actors.core.watchdog_settings import QUIET_SECONDS, WatchdogSettings
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    BatchFormed,
    CheckpointCommitted,
    EngineStarting,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EvaluationCompleted,
    Heartbeat,
    LossEvaluated,
    StepCompleted,
    Throughput,
    TrainerProgress,
    TrajectoryDropped,
    TrajectoryExported,
    Wait,
    WeightsLoaded,
    WeightsPublished,
    WorkerJoined,
    WorkerLeft,
    recorded_calls,
)
from areal_actors.messages.episode_ends import is_failure
from areal_actors.recipe.supervision import joined_kind
from areal_bus.message import Message

INFERENCE_WORKER = "inference_worker"
LOADING = "loading weight version"
"""Prefix of the name of the wait for weights to be loaded."""
SLOW_LOAD_SECONDS = 2.0
"""Weights published longer ago and not loaded are mentioned."""
SILENT_SECONDS = QUIET_SECONDS + 2.0
"""An actor without a heartbeat for longer is mentioned."""
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
DISCARDED = ("stale", "incomplete group")
"""Reasons of dropped groups that `max_discarded_batches` limits; the batcher limits those of its filter."""


class ReceivedBeat(NamedTuple):
    """A heartbeat with the times of receipt (watcher's clock) and sending (sender's clock, seconds since the epoch)."""

    beat: Heartbeat
    at: float
    sent: float

    def seconds_waited(self, wait: Wait, now: float) -> float:
        """Returns the duration of a wait until now; clocks of two machines are never compared."""
        return max(self.sent - wait.since, 0.0) + now - self.at


class WeightVersions:
    """Publication time of each weight version, and the version loaded by each inference worker."""

    def __init__(self) -> None:
        self.published_at: dict[int, float] = {}
        self.loaded: dict[str, int] = {}

    def note_published(self, version: int, now: float) -> None:
        """Note a published version; forget versions that every worker has passed."""
        self.published_at.setdefault(version, now)
        oldest = min(self.loaded.values(), default=-1)
        self.published_at = {
            number: at for number, at in self.published_at.items() if number > oldest or number == version
        }

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
                yield (
                    f"{actor} {serves} while version {newest} was published {now - self.published_at[newest]:.0f} s ago"
                )
            for wait in received.beat.waits:
                if (
                    wait.name.startswith(LOADING)
                    and (seconds := received.seconds_waited(wait, now)) >= SLOW_LOAD_SECONDS
                ):
                    yield f"{actor}: {wait.name} has taken {seconds:.0f} s"


class Watchdog:
    """A fold over events and heartbeats: the last progress, work discarded since, and consecutive failed episodes."""

    def __init__(
        self,
        settings: WatchdogSettings,
        now: float,
        *,
        batch_size: int = 1,
        waits_for_clients: bool = False,
        joined: Sequence[str] = (),
        gateways: Sequence[str] = (),
    ) -> None:
        """A run that waits for external clients is never ended for lack of progress.

        `joined` are roles that only other hosts serve, `gateways` those that they serve.
        """
        self.settings = settings
        self.joined, self.gateways = joined, gateways
        self.starting: set[str] = set()
        """Remote workers that have joined and sent no heartbeat yet."""
        self.batch_size = batch_size
        self.waits_for_clients = waits_for_clients
        self.progressed_at = now
        self.reported = now
        self.step = 0
        self.stepped_at = now
        self.beats: dict[str, ReceivedBeat] = {}
        self.weights = WeightVersions()
        self.seen: set[tuple[object, ...]] = set()
        """Progress since the last step, of kinds that count once."""
        self.kept = self.most_kept = 0
        """Trajectories exported and not dropped since the last step."""
        self.dropped: defaultdict[str, set[str]] = defaultdict(set)
        """Groups dropped since the last step, by reason."""
        self.failures: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()

    def receive(self, message: Message, now: float, sent: float = 0.0) -> None:  # noqa: C901 - one case for each kind
        """Fold a message; `sent` is in seconds since the epoch by its sender's clock."""
        useful = not (self.dropped or self.rejections)
        if self._is_progress(message) or (
            useful and (recorded_calls(message) or (_has_samples(message) and not self.failures))
        ):
            self.progressed_at = now
        match message:
            case Heartbeat():
                self.beats[message.actor] = ReceivedBeat(message, now, sent)
                self.starting.discard(message.process)
            case WorkerJoined():
                self.starting.add(message.worker)
            case ActorFailed(actor=actor) | ActorStopped(actor=actor) | WorkerLeft(worker=actor):
                self.beats.pop(actor, None)
                self.starting.discard(actor)
                self.weights.loaded.pop(actor, None)
            case WeightsPublished():
                self.weights.note_published(message.weight_version, now)
            case WeightsLoaded():
                self.weights.loaded[message.worker] = message.weight_version
            case StepCompleted() if message.step > self.step:
                self.step, self.stepped_at = message.step, now
                self.kept = self.most_kept = 0
                self.seen.clear()
                self.dropped.clear()
            case EpisodeAbandoned(reason="rejected"):
                self.rejections[f"{message.reason}: {message.detail}"] += 1
            case EpisodeAbandoned() if (
                is_failure(message) and message.work.attempts_left == 0 and not self.weights.none_served()
            ):
                self.failures[f"{message.reason}: {message.detail}"] += 1
            case TrajectoryExported():
                self.failures.clear()
                self.rejections.clear()
            case EpisodeEvaluated():
                self.failures.clear()
            case TrajectoryDropped():
                self.kept = max(self.kept - 1, 0)
                self.dropped[message.reason].add(message.group)

    def _is_progress(self, message: Message) -> bool:  # noqa: PLR0911 - one return for each kind
        match message:
            case StepCompleted():
                return message.step > self.step
            case TrajectoryExported():
                self.kept += 1
                before, self.most_kept = self.most_kept, max(self.kept, self.most_kept)
                return self.most_kept > before
            case TrainerProgress():
                return self._is_new("phase", message.phase, message.done)
            case EngineStarting():
                return self._is_new(message.subject, message.worker, message.phase)
            case WeightsPublished() | EvaluationCompleted() | LossEvaluated():
                return self._is_new(message.subject, message.weight_version)
            case WeightsLoaded():
                return self._is_new(message.subject, message.worker, message.weight_version)
            case BatchFormed() | CheckpointCommitted():
                return self._is_new(message.subject, message.step)
            case EpisodeEvaluated():
                return self._is_new(message.subject, message.work.episode)
        return False

    def _is_new(self, *key: object) -> bool:
        new = key not in self.seen
        self.seen.add(key)
        return new

    # ------------------------------------------------------------ conclusions

    def problem(self, now: float) -> str:
        """Returns the reason why the run cannot go on; empty if it can."""
        if failures := self.too_many_failures():
            return "; ".join([failures, *self.weights.behind(self.beats, now)])
        return self.too_many_discarded(now) or self._endless_stall(now)

    def too_many_failures(self) -> str:
        """Describes consecutive failed or rejected episodes; empty below the limits."""
        if (count := self.rejections.total()) >= self.settings.max_rejections_in_a_row:
            reason, times = self.rejections.most_common(1)[0]
            return (
                f"{count} episodes in a row were rejected and none was exported; most common reason ({times} times):"
                f" {reason}; accept more episodes, or raise watchdog.max_rejections_in_a_row"
            )
        if (count := self.failures.total()) < self.settings.max_failures_in_a_row:
            return ""
        reason, times = self.failures.most_common(1)[0]
        return f"{count} episodes in a row failed after all retries; most common reason ({times} times): {reason}"

    def too_many_discarded(self, now: float) -> str:
        """Describes groups discarded since the last step; empty below the limit."""
        groups = sum(len(self.dropped[reason]) for reason in DISCARDED)
        without_step = now - self.stepped_at
        if groups < self.settings.max_discarded_batches * self.batch_size or without_step < self.settings.stall_seconds:
            return ""
        return (
            f"{self.sentence(now)}; watchdog.max_discarded_batches = {self.settings.max_discarded_batches} is reached"
        )

    def _endless_stall(self, now: float) -> str:
        if self.waits_for_clients or now - self.progressed_at < self.settings.max_stall_seconds:
            return ""
        return f"{self.sentence(now)}; watchdog.max_stall_seconds = {self.settings.max_stall_seconds:g} is reached"

    def find_stall(self, now: float) -> tuple[str, float] | None:
        """Returns the sentence about missing progress and the seconds without it, once per `stall_seconds`."""
        if now - max(self.progressed_at, self.reported) < self.settings.stall_seconds:
            return None
        self.reported = now
        return self.sentence(now), now - self.progressed_at

    def sentence(self, now: float) -> str:
        """Describes the missing progress, silent actors, weights that are not loaded, and the wait of every actor."""
        causes = [*self._unserved_roles(), *silent_actors(self.beats, now), *self.weights.behind(self.beats, now)]
        return "; ".join([self._instead_of_progress(now), *causes, *waiting_for(self.beats, now)])

    def _unserved_roles(self) -> Iterator[str]:
        """Yields one part per role of remote workers without a live one, and one for gateways that nothing serves."""
        for role in self.joined:
            if not any(joined_kind(worker) == role for worker in (*self.beats, *self.starting)):
                yield (
                    f"no {role} has joined: start one with `{COMMAND} join --role {role}`, with this start's join.json"
                )
        missing = [gateway for gateway in self.gateways if gateway not in self.beats]
        if missing and not any(joined_kind(worker) == GATEWAY for worker in self.starting):
            whose = f", which serves {', '.join(missing)}" if len(self.gateways) > 1 else ""
            yield (
                f"no gateway has joined{whose}: start one with `{COMMAND} join --role gateway`, with this start's"
                " join.json"
            )

    def _instead_of_progress(self, now: float) -> str:
        if not (groups := sum(map(len, self.dropped.values()))):
            rejected = f": {count} episodes in a row were rejected" if (count := self.rejections.total()) else ""
            return f"no progress for {now - self.progressed_at:.0f} s{rejected}"
        reasons = ", ".join(f"{len(numbers)} {reason}" for reason, numbers in self.dropped.items() if numbers)
        since = f"since step {self.step}" if self.step else "before the first step"
        return (
            f"no step was trained for {now - self.stepped_at:.0f} s: {groups} groups were sampled and dropped {since}"
            f" ({reasons})"
        )


def silent_actors(beats: Mapping[str, ReceivedBeat], now: float) -> Iterator[str]:
    """Yields one part for each actor that sends no heartbeats, and is not given up yet."""
    for actor, received in sorted(beats.items()):
        if (age := now - received.at) > SILENT_SECONDS:
            yield f"{actor} has sent no heartbeat for {age:.0f} s"


def _has_samples(message: Message) -> bool:
    """Returns True if an engine reports sampled tokens."""
    return isinstance(message, Throughput) and message.side == "generation" and message.tokens > 0


def waiting_for(beats: Mapping[str, ReceivedBeat], now: float) -> Iterator[str]:
    """Yields one part for each actor that is busy or waiting."""
    if gate := _status(beats, "staleness_gate"):
        yield (
            f"the staleness gate ({LIMITS.get(str(gate['bound']), str(gate['bound']))}) has {gate['running']:g} groups"
            f" running, {gate['complete']:g} complete and {gate['in_batch']:g} in training at weight version"
            f" {gate['weight_version']:g}"
        )
    if batcher := _status(beats, "batcher"):
        yield (
            f"the batcher has {batcher['complete_groups']:g} complete groups of the {batcher['batch_size']:g} of a"
            " batch"
        )
    if (gateway := _status(beats, gateway_name(0))) and (groups := gateway.get("groups")):
        yield f"the gateway waits for agents: {groups}"
    if evaluations := _status(beats, "evaluator"):
        yield from (f"{name} has ended {ended} episodes" for name, ended in sorted(evaluations.items()))
    if source := _status(beats, "example_source"):
        yield f"the example source has drawn the examples of {source['steps_drawn']:g} steps"
    for actor, received in sorted(beats.items()):
        doing = [f"handles {count} {name}" for name, count in received.beat.handling.items()]
        longest = sorted(received.beat.waits, key=lambda wait: wait.since)[:WAITS_SHOWN]
        waits = [f"waits for {wait.name} since {received.seconds_waited(wait, now):.0f} s" for wait in longest]
        if doing or waits:
            yield f"{actor} {', '.join(doing + waits)}"


def _status(beats: Mapping[str, ReceivedBeat], kind: str) -> Mapping[str, float | str] | None:
    return next((received.beat.status for actor, received in beats.items() if actor.startswith(kind)), None)
