"""A run as spans of traces.

Each attempt at an episode is a trace, from its request to the step that used it, and so is each step. Ids are digests
of message ids: the same run gives the same spans, live or from its log, and a span that is sent again replaces itself.
The log has the time of every end. The beginnings of calls, of sampling and of scoring are those of their requests,
which are not in the log: without them (a run that is over, or one that is joined late) a span begins where the one
before it ended, and has `areal.begin`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from areal_actors.core.values import Interaction
from areal_actors.messages import (
    KINDS,
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    EvaluateEpisode,
    Generate,
    InteractionRecorded,
    ModelRequest,
    RunEpisode,
    RunStarted,
    ScoreEpisode,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
    recorded_calls,
)
from areal_actors.messages.episode_ends import EpisodeEnds, is_failure, outcome_of
from areal_bus.base import Envelope

REQUESTS = frozenset(kind.subject for kind in (RunEpisode, EvaluateEpisode, ModelRequest, Generate, ScoreEpisode))
"""Subjects of messages that are not in the log and begin something."""
INFERRED = {"areal.begin": "inferred"}
BEGINNINGS_KEPT = 100_000
"""Maximum number of requests whose end is awaited; one that was refused never comes."""
_KINDS = {kind.subject: kind for kind in KINDS}


class SpanPlace(NamedTuple):
    """A span in its trace, for children and links."""

    trace: str
    """32 hexadecimal digits."""
    span: str
    """16 hexadecimal digits."""


class Span(NamedTuple):
    """A span as OpenTelemetry has it; times are seconds since the epoch."""

    name: str
    place: SpanPlace
    parent: str
    """Id of the parent in the same trace; empty for a root."""
    begin: float
    end: float
    attributes: Mapping[str, Any]
    links: tuple[SpanPlace, ...] = ()
    error: str = ""


class TracedCall(NamedTuple):
    """A model call that was recorded."""

    id: str
    cause: str
    time: float
    event: InteractionRecorded


class Exported(NamedTuple):
    """An exported trajectory that is not yet trained or dropped."""

    root: SpanPlace
    export: SpanPlace
    time: float
    reward: float


class TracedBatch(NamedTuple):
    """A batch whose step is not completed."""

    place: SpanPlace
    time: float
    members: tuple[Exported, ...]


class Traces:
    """Spans of one run, from its envelopes in the order of its log."""

    def __init__(self) -> None:
        self.run = ""
        self._started = ""
        self._ends = EpisodeEnds()
        self._began: dict[str, float] = {}
        """Time of each request, by its id, and of the work on each attempt, by `EPISODE/ATTEMPT`."""
        self._sampling: dict[str, float] = {}
        """Time of the first `Generate` of each model request, by the request's id."""
        self._granted: dict[int, float] = {}
        self._calls: dict[str, list[TracedCall]] = defaultdict(list)
        """Calls of the present attempt at each episode."""
        self._scored: dict[str, tuple[str, str, float]] = {}
        """Id, cause and time of the score of each episode."""
        self._exported: dict[int, Exported] = {}
        """By position in the log."""
        self._positions: dict[str, int] = {}
        """Position of the newest trajectory of each episode."""
        self._batches: dict[int, TracedBatch] = {}
        self._weights: dict[int, tuple[SpanPlace, float]] = {}
        """Last span of each weight version, and its end: the step, then the publication."""

    def begin(self, envelope: Envelope) -> None:
        """Note the time of a request or work item, one of `REQUESTS`."""
        if envelope.subject == Generate.subject:
            self._sampling.setdefault(envelope.cause, envelope.time)
        elif envelope.subject in (RunEpisode.subject, EvaluateEpisode.subject) and not envelope.claim:
            opened = envelope.open(_KINDS[envelope.subject])
            work = opened.work if isinstance(opened, EvaluateEpisode) else opened
            assert isinstance(work, RunEpisode)
            self._began.setdefault(f"{work.episode}/{work.attempt}", envelope.time)
        else:
            self._began.setdefault(envelope.id, envelope.time)
        for kept in (self._began, self._sampling):
            while len(kept) > BEGINNINGS_KEPT:
                del kept[next(iter(kept))]

    def receive(self, envelope: Envelope) -> Iterator[Span]:  # noqa: C901, PLR0912 - a table of one line each
        """Yield the spans that end with an event."""
        kind = _KINDS.get(envelope.subject)
        if kind is None:
            return
        time, event = envelope.time, envelope.open(kind)
        for call in recorded_calls(event):
            self._calls[call.episode].append(_trace_call(call, envelope))
        match event:
            case RunStarted():
                self.run, self._started = envelope.run, envelope.id
                self._ends.begin(event.recipe)
            case CapacityGranted():
                self._granted |= dict.fromkeys(range(event.first_group, event.first_group + event.groups), time)
            case EpisodeScored():
                self._scored[event.work.episode] = (envelope.id, envelope.cause, time)
            case EpisodeAbandoned() if self._is_first(event.work.episode, event.work.attempt, event.work.attempts_left):
                error = f"{event.reason}: {event.detail}" if is_failure(event) else ""
                yield from self._episode(
                    event.work.episode, event.work.attempt, time, outcome=outcome_of(event), error=error
                )
            case EpisodeEvaluated() if self._is_first(event.work.episode, event.work.attempt):
                yield from self._episode(
                    event.work.episode, event.work.attempt, time, outcome="evaluated", reward=event.reward
                )
            case TrajectoryExported() if self._is_first(event.trajectory.episode, event.trajectory.attempt):
                yield from self._export(envelope, event)
            case TrajectoryDropped():
                yield from self._drop(envelope, event)
            case BatchFormed():
                self._form(envelope, event)
            case StepCompleted():
                yield from self._step(envelope, event)
            case WeightsPublished() if event.weight_version in self._weights:
                yield self._of_weights("publish weights", envelope, event.weight_version, keep=True)
            case WeightsLoaded() if event.weight_version in self._weights:
                yield self._of_weights(f"load weights, {event.worker}", envelope, event.weight_version, keep=False)

    # ------------------------------------------------------------ episodes

    def _trace(self, *parts: object) -> str:
        return _digest(16, self._started, *parts)

    def _root(self, episode: str, attempt: int) -> SpanPlace:
        trace = self._trace("episode", episode, attempt)
        return SpanPlace(trace, _digest(8, trace))

    def _is_first(self, episode: str, attempt: int, attempts_left: int = 0) -> bool:
        """Returns True at the first end of an attempt; a repetition has no spans."""
        return self._ends.is_first(episode, attempt, attempts_left)

    def _episode(
        self,
        episode: str,
        attempt: int,
        end: float,
        *,
        outcome: str,
        reward: float | None = None,
        error: str = "",
        sampled: Mapping[str, Interaction] | None = None,
    ) -> Iterator[Span]:
        """Yield an attempt with its calls and its score."""
        root, calls = (
            self._root(episode, attempt),
            [call for call in self._calls.pop(episode, []) if call.event.is_of(attempt)],
        )
        group = episode.partition(".")[0]
        asked = self._began.pop(f"{episode}/{attempt}", None)
        begin = asked if asked is not None else self._granted.get(int(group), end) if group.isdecimal() else end
        first = [self._began.get(call.cause, call.time) for call in calls]
        begin = min([begin, *first])
        attributes = {
            "areal.run": self.run,
            "areal.episode": episode,
            "areal.attempt": attempt,
            "areal.outcome": outcome,
        }
        attributes |= {} if reward is None else {"areal.reward": reward}
        yield Span("episode", root, "", begin, end, attributes | ({} if asked is not None else INFERRED), error=error)
        before = begin
        for call in calls:
            yield from self._call(call, root, before, (sampled or {}).get(call.event.interaction))
            before = call.time
        if (score := self._scored.pop(episode, None)) is not None:
            id_, cause, time = score
            since = self._began.pop(cause, None)
            inferred = {} if since is not None else INFERRED
            yield Span(
                "score",
                SpanPlace(root.trace, _digest(8, id_)),
                root.span,
                since if since is not None else before,
                time,
                inferred,
            )

    def _call(self, call: TracedCall, root: SpanPlace, before: float, sampled: Interaction | None) -> Iterator[Span]:
        event, place = call.event, SpanPlace(root.trace, _digest(8, call.id))
        generated = self._sampling.pop(call.cause, None)
        # The gateway's own actors exchange requests within their process: monitors see what they ask of an engine.
        asked = self._began.pop(call.cause, generated)
        begin = min(asked if asked is not None else before, call.time)
        attributes: dict[str, Any] = {
            "areal.interaction": event.interaction,
            "areal.weight_version": event.weight_version,
            "gen_ai.usage.input_tokens": event.prompt_tokens,
            "gen_ai.usage.output_tokens": event.completion_tokens,
            "gen_ai.response.finish_reasons": [event.finish_reason],
        }
        links: tuple[SpanPlace, ...] = ()
        attributes = attributes | ({} if asked is not None else INFERRED)
        if (client := event.trace) is not None:
            links = (SpanPlace(client.trace, client.span),)
            attributes |= {"areal.client.trace_id": client.trace, "areal.client.span_id": client.span}
            attributes |= {f"areal.client.baggage.{name}": value for name, value in client.baggage.items()}
        yield Span("call", place, root.span, begin, call.time, attributes, links)
        yield from _segments(place, begin if generated is None else generated, call, sampled)

    def _export(self, envelope: Envelope, event: TrajectoryExported) -> Iterator[Span]:
        trajectory = event.trajectory
        root, export = (
            self._root(trajectory.episode, trajectory.attempt),
            SpanPlace(self._root(trajectory.episode, trajectory.attempt).trace, _digest(8, envelope.id)),
        )
        scored = self._scored.get(trajectory.episode, ("", "", envelope.time))[2]
        sampled = {interaction.id: interaction for interaction in trajectory.interactions}
        yield from self._episode(
            trajectory.episode,
            trajectory.attempt,
            envelope.time,
            outcome="exported",
            reward=trajectory.reward,
            sampled=sampled,
        )
        yield Span("export", export, root.span, scored, envelope.time, {"areal.sequence": envelope.sequence})
        self._exported[envelope.sequence] = Exported(root, export, envelope.time, trajectory.reward)
        self._positions[trajectory.episode] = envelope.sequence

    def _drop(self, envelope: Envelope, event: TrajectoryDropped) -> Iterator[Span]:
        exported = self._exported.pop(self._positions.pop(event.episode, 0), None)
        if exported is not None:
            place = SpanPlace(exported.root.trace, _digest(8, envelope.id))
            yield Span("drop", place, exported.root.span, exported.time, envelope.time, {"areal.reason": event.reason})

    # ------------------------------------------------------------ steps

    def _form(self, envelope: Envelope, event: BatchFormed) -> None:
        refs = [ref for group in event.groups for ref in group]
        members = tuple(member for ref in refs if (member := self._exported.pop(ref.sequence, None)) is not None)
        for ref in refs:
            self._positions.pop(ref.episode, None)
        place = SpanPlace(self._trace("step", event.step), _digest(8, envelope.id))
        self._batches[event.step + 1] = TracedBatch(place, envelope.time, members)

    def _step(self, envelope: Envelope, event: StepCompleted) -> Iterator[Span]:
        batch = self._batches.pop(event.step, None)
        trace = batch.place.trace if batch else self._trace("step", event.step - 1)
        place = SpanPlace(trace, _digest(8, envelope.id))
        attributes: dict[str, Any] = {"areal.run": self.run, "areal.step": event.step}
        attributes |= {f"areal.{name}": value for name, value in event.metrics.items()}
        if batch is None:  # of a run that learns from examples, or of a log whose beginning was trimmed
            yield Span("step", place, "", envelope.time, envelope.time, attributes | INFERRED)
        else:
            links = tuple(member.export for member in batch.members)
            oldest = min([batch.time, *(member.time for member in batch.members)])
            counted = {"areal.run": self.run, "areal.step": event.step, "areal.trajectories": len(batch.members)}
            yield Span("batch", batch.place, "", oldest, batch.time, counted, links)
            yield Span("step", place, batch.place.span, batch.time, envelope.time, attributes)
            for member in batch.members:
                used = SpanPlace(member.root.trace, _digest(8, member.export.span, envelope.id))
                yield Span(
                    "train", used, member.root.span, member.time, envelope.time, {"areal.step": event.step}, (place,)
                )
        self._weights = {event.step: (place, envelope.time)} | dict(list(self._weights.items())[:1])

    def _of_weights(self, name: str, envelope: Envelope, version: int, *, keep: bool) -> Span:
        before, ended = self._weights[version]
        place = SpanPlace(before.trace, _digest(8, envelope.id))
        if keep:
            self._weights[version] = (place, envelope.time)
        return Span(
            name, place, before.span, min(ended, envelope.time), envelope.time, {"areal.weight_version": version}
        )


def _trace_call(call: InteractionRecorded, envelope: Envelope) -> TracedCall:
    """A call, as the event that reports it has it."""
    if call.time:
        return TracedCall(call.interaction, call.request, call.time, call)
    return TracedCall(envelope.id, envelope.cause, envelope.time, call)


def _segments(call: SpanPlace, since: float, traced_call: TracedCall, sampled: Interaction | None) -> Iterator[Span]:
    """Yield the parts of a completion that one weight version sampled.

    Their times divide that of sampling by tokens.
    """
    versions = sampled.completion.versions if sampled else ()
    tokens, seconds = versions[-1].end if versions else 0, traced_call.time - since
    for span in versions:
        attributes: dict[str, Any] = {
            "areal.weight_version": span.weight_version,
            "gen_ai.usage.output_tokens": span.end - span.start,
        }
        attributes |= {"areal.worker": sampled.worker} if sampled and sampled.worker else {}
        place = SpanPlace(call.trace, _digest(8, call.span, span.start))
        yield Span(
            "generate",
            place,
            call.span,
            since + seconds * span.start / tokens,
            since + seconds * span.end / tokens,
            attributes,
        )


def _digest(size: int, *parts: object) -> str:
    return blake2b(msgspec.json.encode([str(part) for part in parts]), digest_size=size).hexdigest()
