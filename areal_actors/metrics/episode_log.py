"""The episode log: every ended episode as one line of `episodes.jsonl`, with decoded texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from areal_actors.core.durable_files import append_line
from areal_actors.core.values import Interaction, Value
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    InteractionRecorded,
    InteractionsRecorded,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
    recorded_calls,
)
from areal_actors.messages.episode_ends import EpisodeEnd, EpisodeEnds, outcome_of, party_at_end
from areal_actors.runtime.actor import Actor, Context, on

REMEMBERED = 4_096
"""Maximum number of open groups and episodes kept; many times what a run has at once."""


class TokenDecoder(Protocol):
    """Decodes token ids."""

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Returns the text of these tokens."""
        ...


class EpisodeLogState(Value):
    """Snapshot of an episode log: open episodes."""

    granted: dict[str, float]
    recorded: dict[str, list[InteractionRecorded]]
    scored: dict[str, EpisodeScored]
    model: str = ""
    ends: EpisodeEnds = msgspec.field(default_factory=EpisodeEnds)


class EpisodeLog(Actor):
    """Joins the events of each episode and decodes its tokens; all data is also in the log of the run.

    Fields of a line: `time` (seconds since the epoch), `outcome` (`exported`, `evaluated`, `abandoned`, `rejected`,
    `surplus`), `reason` and `detail` of the last three, `task_id`, `task`, `episode`, `group`, `attempt`, `purpose`,
    `output` (the agent's text), `reward`, `ended_by` (`agent`, `model`, `environment`, `infrastructure`) and
    `end_cause` of one that the model ended, `interactions`, `completion_tokens`, `weight_versions` (oldest and newest),
    `seconds` (since its group was granted, including waiting and earlier attempts; null in evaluation). Fields of an
    interaction: `id`, `parent`, `prefix`, `prompt` (text after that of its prefix) and `completion` if the episode was
    exported, `prompt_tokens`, `completion_tokens`, `finish_reason`, `weight_versions`, `reward`.
    """

    state_type = EpisodeLogState

    def __init__(self, path: Path, load_decoder: Callable[[str], TokenDecoder], *, group_size: int = 0) -> None:
        """`path` is in the run folder; `load_decoder` takes the model folder named by `WeightsPublished`."""
        self.path = path
        self.load_decoder = load_decoder
        self.decoder: TokenDecoder | None = None
        self.model = ""
        """Model folder, as named by events."""
        self.granted: dict[str, float] = {}
        """Time of the grant by group, until the group is in a batch or dropped."""
        self.recorded: dict[str, list[InteractionRecorded]] = {}
        """Interactions by episode, until it ends."""
        self.scored: dict[str, EpisodeScored] = {}
        self.ends = EpisodeEnds(group_size=group_size)

    def snapshot(self) -> EpisodeLogState:
        """State of episodes that have not ended."""
        return EpisodeLogState(
            granted=dict(self.granted),
            recorded=dict(self.recorded),
            scored=dict(self.scored),
            model=self.model,
            ends=self.ends,
        )

    def restore(self, state: EpisodeLogState) -> None:
        """Continue from this state."""
        self.granted, self.recorded, self.scored = dict(state.granted), dict(state.recorded), dict(state.scored)
        self.ends = EpisodeEnds(group_size=self.ends.group_size, ended=state.ends.ended, failed=state.ends.failed)
        if state.model:
            self._load(state.model)

    def _load(self, model: str) -> None:
        if self.decoder is None:
            self.decoder, self.model = self.load_decoder(str(self.path.parent / model)), model

    @on
    def weights_published(self, event: WeightsPublished) -> None:
        self._load(event.location.model)

    @on
    def batch_formed(self, event: BatchFormed) -> None:
        for number in event.group_numbers():
            self.granted.pop(str(number), None)

    @on
    def trajectory_dropped(self, event: TrajectoryDropped) -> None:
        self.granted.pop(event.group, None)

    @on
    def capacity_granted(self, event: CapacityGranted, context: Context) -> None:
        self.granted |= {
            str(number): context.sent for number in range(event.first_group, event.first_group + event.groups)
        }
        _forget_oldest(self.granted)

    @on
    def interactions_recorded(self, event: InteractionsRecorded | InteractionRecorded) -> None:
        for call in recorded_calls(event):
            self.recorded.setdefault(call.episode, []).append(call)
        _forget_oldest(self.recorded)

    @on
    def episode_scored(self, event: EpisodeScored) -> None:
        self.scored[event.work.episode] = event
        _forget_oldest(self.scored)

    @on
    def trajectory_exported(self, event: TrajectoryExported, context: Context) -> None:
        trajectory = event.trajectory
        scored = self.scored.pop(trajectory.episode, None)
        calls = [*self.recorded.pop(trajectory.episode, []), *event.recorded]
        if not self.ends.is_first(trajectory.episode, trajectory.attempt):
            return
        prompts = {recorded.interaction: recorded.prompt_tokens for recorded in calls}
        self._write(
            context,
            outcome="exported",
            task_id=trajectory.task,
            task=scored.work.task.data if scored else None,
            episode=trajectory.episode,
            group=trajectory.group,
            attempt=trajectory.attempt,
            purpose="train",
            output=scored.output if scored else "",
            reward=trajectory.reward,
            **_end(event),
            interactions=[
                self._full(interaction, prompts.get(interaction.id)) for interaction in trajectory.interactions
            ],
        )

    @on
    def episode_evaluated(self, event: EpisodeEvaluated, context: Context) -> None:
        self._write_end(context, event, outcome="evaluated", output=event.output, reward=event.reward, **_end(event))

    @on
    def episode_abandoned(self, event: EpisodeAbandoned, context: Context) -> None:
        self._write_end(
            context, event, outcome=outcome_of(event), reason=event.reason, detail=event.detail, **_end(event)
        )

    def _write_end(self, context: Context, event: EpisodeEvaluated | EpisodeAbandoned, **fields: Any) -> None:
        work = event.work
        self.scored.pop(work.episode, None)
        interactions = [_summary(call) for call in self.recorded.pop(work.episode, []) if call.is_of(work.attempt)]
        left = event.work.attempts_left if isinstance(event, EpisodeAbandoned) else 0
        if not self.ends.is_first(work.episode, work.attempt, left):
            return
        self._write(
            context,
            task_id=work.task.id,
            task=work.task.data,
            episode=work.episode,
            group=work.group,
            attempt=work.attempt,
            purpose=work.purpose,
            interactions=interactions,
            **fields,
        )

    def _full(self, interaction: Interaction, prompt_tokens: int | None) -> dict[str, Any]:
        return {
            "id": interaction.id,
            "parent": interaction.parent,
            "prefix": interaction.prefix,
            "prompt": interaction.prompt_text(self._text),
            "completion": self._text(interaction.completion.ids_array().tolist()),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(interaction.completion),
            "finish_reason": interaction.finish_reason,
            "weight_versions": [
                interaction.completion.versions[0].weight_version,
                interaction.completion.versions[-1].weight_version,
            ],
            "reward": interaction.reward,
        }

    def _text(self, ids: Sequence[int]) -> str | None:
        return self.decoder.decode(ids, skip_special=False) if self.decoder else None

    def _write(self, context: Context, *, interactions: list[dict[str, Any]], **fields: Any) -> None:
        if context.replayed:
            return
        versions = [version for interaction in interactions for version in interaction["weight_versions"]]
        granted = self.granted.get(fields["group"])
        line = {
            "time": context.sent,
            **fields,
            "interactions": interactions,
            "completion_tokens": sum(interaction["completion_tokens"] for interaction in interactions),
            "weight_versions": [min(versions), max(versions)] if versions else [],
            "seconds": round(context.sent - granted, 3) if granted is not None else None,
        }
        append_line(self.path, json.dumps(line, ensure_ascii=False, default=str))


def _forget_oldest(entries: dict[str, Any]) -> None:
    """Remove leftovers of groups that lost all episodes, and of attempts that outlived their episode."""
    while len(entries) > REMEMBERED:
        del entries[next(iter(entries))]


def _end(event: EpisodeEnd) -> dict[str, str]:
    return dict(zip(("ended_by", "end_cause"), party_at_end(event), strict=True))


def _summary(recorded: InteractionRecorded) -> dict[str, Any]:
    return {
        "id": recorded.interaction,
        "parent": recorded.parent,
        "prefix": recorded.prefix,
        "prompt_tokens": recorded.prompt_tokens,
        "completion_tokens": recorded.completion_tokens,
        "finish_reason": recorded.finish_reason,
        "weight_versions": [recorded.weight_version, recorded.weight_version],
    }
