"""The ends of attempts in the log of the run whose agents call a policy, as the policy's session manager takes them."""

from __future__ import annotations

import msgspec

from areal_actors.core.values import SamplingParams, Task
from areal_actors.messages import (
    EndPolicySession,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    RunEpisode,
    TrajectoryExported,
)
from areal_actors.messages.episode_ends import UNUSED
from areal_bus.base import Envelope

READ: dict[str, type[EpisodeScored | TrajectoryExported | EpisodeEvaluated | EpisodeAbandoned]] = {
    kind.subject: kind for kind in (EpisodeScored, TrajectoryExported, EpisodeEvaluated, EpisodeAbandoned)
}
"""Events that are read, by subject."""


class EpisodeEndings:
    """A fold over the other run's log: an end, with the score of the episode before it."""

    def __init__(self) -> None:
        self.scores: dict[str, EpisodeScored] = {}
        """Scores of episodes that have not ended, by episode."""

    def receive(self, envelope: Envelope) -> EndPolicySession | None:
        """Returns the end of an attempt; None for any other event."""
        kind = READ.get(envelope.subject)
        if kind is None:
            return None
        event = envelope.open(kind)
        if isinstance(event, EpisodeScored):
            self.scores[event.work.episode] = event
            return None
        episode = event.trajectory.episode if isinstance(event, TrajectoryExported) else event.work.episode
        return end_of(event, self.scores.pop(episode, None))


def end_of(
    event: TrajectoryExported | EpisodeEvaluated | EpisodeAbandoned, scored: EpisodeScored | None
) -> EndPolicySession:
    """Returns the end of an attempt; one in which only other policies were called ends with its score."""
    if isinstance(event, EpisodeAbandoned) and (event.reason != UNUSED or scored is None or scored.reward is None):
        return EndPolicySession(work=event.work, reason=event.reason, detail=event.detail)
    if isinstance(event, TrajectoryExported):
        trajectory = event.trajectory
        names = RunEpisode(
            episode=trajectory.episode,
            group=trajectory.group,
            attempt=trajectory.attempt,
            task=Task(id=trajectory.task, data={}, source=trajectory.source),
            sampling=SamplingParams(),
        )
        return EndPolicySession(
            work=names,
            reward=trajectory.reward,
            metrics=trajectory.metrics,
            output=scored.output if scored is not None else "",
            ended_by=trajectory.ended_by,
            end_cause=trajectory.end_cause,
        )
    ended = scored if isinstance(event, EpisodeAbandoned) else event
    assert ended is not None
    return EndPolicySession(
        work=msgspec.structs.replace(event.work, attempts_left=0),
        reward=ended.reward,
        metrics=ended.metrics,
        output=ended.output,
        ended_by=ended.ended_by,
        end_cause=ended.end_cause,
    )
