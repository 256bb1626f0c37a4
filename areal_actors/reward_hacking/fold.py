"""The detector as a fold over the events of a log."""

from __future__ import annotations

from areal_actors.messages import EpisodeScored, StepCompleted, TrajectoryExported
from areal_actors.reward_hacking.alarm import HackAlarm
from areal_actors.reward_hacking.detector import HackDetector, ScoredOutput
from areal_actors.reward_hacking.features import read_output
from areal_bus.message import Message

MOST_TEXT = 2000
"""Characters of an output that are kept for the example of an alarm."""


class HackFold:
    """Receives the events of a log in order; the outputs scored since a step are those of the next."""

    def __init__(self) -> None:
        self._detector = HackDetector()
        self._scored: dict[str, EpisodeScored] = {}
        self._outputs: dict[str, ScoredOutput] = {}

    @property
    def alarms(self) -> list[HackAlarm]:
        """Alarms so far."""
        return self._detector.alarms

    def receive(self, message: Message) -> None:
        """Receive the next event."""
        match message:
            case EpisodeScored() if message.work.purpose == "train" and message.output:
                self._scored[message.work.episode] = message
            case TrajectoryExported():
                self._read(message)
            case StepCompleted() if self._outputs:
                self._detector.complete_step(list(self._outputs.values()))
                self._outputs = {}

    def _read(self, event: TrajectoryExported) -> None:
        trajectory = event.trajectory
        scored = self._scored.pop(trajectory.episode, None)
        if scored is None:
            return
        calls = trajectory.interactions
        read = read_output(scored.output, scored.work.task.data, len(calls), calls[-1].finish_reason if calls else "")
        self._outputs[trajectory.episode] = ScoredOutput(
            episode=trajectory.episode,
            group=trajectory.group,
            task=trajectory.task,
            reward=trajectory.reward,
            text=scored.output[:MOST_TEXT],
            read=read,
        )
