"""Rewards of calls and of their parts under another reward function, in place of those of the recorded one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from areal_actors.core.errors import RewardError
from areal_actors.core.values import Interaction, Trajectory
from areal_actors.gateway.sessions.span_places import apply_spans, rewards_by_id
from areal_actors.replay.rescore import Rescored, RewardedParts
from areal_actors.sequences.build import apply_rewards, last_trained
from areal_actors.tokenization.tokenizer import ChatTokenizer


class PartRewards:
    """Assigns them with the tokenizer of the run's model, which is loaded when a span needs it."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` of the run; None for a log alone, which has no tokenizer."""
        self.folder = folder
        self.model = ""
        """Folder of the model within that of the run, as weights are published with it."""
        self._chat: ChatTokenizer | None = None

    def replace(self, trajectory: Trajectory, score: Rescored) -> Trajectory:
        """Returns a trajectory with the rewards of a score.

        Raises:
            RewardError: a span or a call is none of the episode, or there is no tokenizer for a span.
        """
        calls = self._without_recorded(trajectory.interactions, score)
        by_id = rewards_by_id(score.parts.places, calls)
        calls = self._with_spans(calls, score.parts, score.output)
        calls = apply_rewards(calls, score.now, by_id)
        return msgspec.structs.replace(
            trajectory, reward=last_trained(calls).reward, interactions=calls, metrics=score.metrics
        )

    def _without_recorded(self, calls: tuple[Interaction, ...], score: Rescored) -> tuple[Interaction, ...]:
        """Returns the calls with what the agent itself had set, which comes before the score's own."""
        before = score.recorded_parts
        if not (before.spans or before.places):
            return calls
        of_score = rewards_by_id(before.places, calls)
        bare = tuple(msgspec.structs.replace(call, spans=()) for call in calls)
        counts = {call.id: len(call.spans) for call in self._with_spans(bare, before, score.output)}
        return tuple(
            msgspec.structs.replace(
                call,
                reward=None if call.id in of_score else call.reward,
                spans=call.spans[: len(call.spans) - counts[call.id]],
            )
            for call in calls
        )

    def _with_spans(self, calls: tuple[Interaction, ...], parts: RewardedParts, output: str) -> tuple[Interaction, ...]:
        if not parts.spans:
            return calls
        if self.folder is None or not self.model:
            raise RewardError("rewards of spans need the tokenizer of the run's model; name the run, not its log")
        if self._chat is None:
            self._chat = ChatTokenizer.load(str(self.folder / self.model))
        return apply_spans(calls, parts.spans, self._chat, output)
