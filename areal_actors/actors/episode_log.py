"""The episode log: every ended episode as one line of `episodes.jsonl`, with its texts, for people and notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from areal_actors.actor import Actor, Turn, on
from areal_actors.durable_files import append_line
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    InteractionRecorded,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.values import Interaction, Value, unpack_ids

REMEMBERED = 4_096
"""Groups and episodes under way that it knows of; many times what a run has at once."""


class Decoder(Protocol):
    """Turns token ids into text."""

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of these tokens."""
        ...


class EpisodeLogState(Value):
    """What a snapshot has: episodes under way."""

    granted: dict[str, float]
    recorded: dict[str, list[InteractionRecorded]]
    scored: dict[str, EpisodeScored]
    model: str = ""


class EpisodeLog(Actor):
    """A listener: what it writes is in the log of the run already, only spread over several events and without texts.

    Fields of a line: `time` (seconds since the epoch), `outcome` (`exported`, `evaluated`, `abandoned`), `reason` and `detail`
    of an abandoned one, `task_id`, `task`, `episode`, `group`, `attempt`, `purpose`, `output` (the agent's text), `reward`,
    `interactions`, `completion_tokens`, `weight_versions` (oldest and newest), `seconds` (since its group was granted, waiting
    and earlier attempts included; null in evaluation). Of an interaction: `id`, `parent`, `prefix`, `prompt` (text after its
    prefix's) and `completion` where the episode was exported, `prompt_tokens`, `completion_tokens`, `finish_reason`, `weight_versions`,
    `reward`.
    """

    state_type = EpisodeLogState

    def __init__(self, path: Path, load_decoder: Callable[[str], Decoder]) -> None:
        """`path` lies in the run's folder; `load_decoder` takes the model folder that `WeightsPublished` names."""
        self.path = path
        self.load_decoder = load_decoder
        self.decoder: Decoder | None = None
        self.model = ""
        """The folder of the model, as events name it."""
        self.granted: dict[str, float] = {}
        """Time by group, until it is in a batch or dropped."""
        self.recorded: dict[str, list[InteractionRecorded]] = {}
        """By episode, until it ends."""
        self.scored: dict[str, EpisodeScored] = {}

    def snapshot(self) -> EpisodeLogState:
        """What is known of episodes that have not ended."""
        return EpisodeLogState(granted=dict(self.granted), recorded=dict(self.recorded), scored=dict(self.scored), model=self.model)

    def restore(self, state: EpisodeLogState) -> None:
        """Go on from there."""
        self.granted, self.recorded, self.scored = dict(state.granted), dict(state.recorded), dict(state.scored)
        if state.model:
            self._load(state.model)

    def _load(self, model: str) -> None:
        if self.decoder is None:
            self.decoder, self.model = self.load_decoder(str(self.path.parent / model)), model

    @on
    async def weights_published(self, event: WeightsPublished) -> None:
        self._load(event.location.model)

    @on
    async def batch_formed(self, event: BatchFormed) -> None:
        for number in event.group_numbers():
            self.granted.pop(str(number), None)

    @on
    async def trajectory_dropped(self, event: TrajectoryDropped) -> None:
        self.granted.pop(event.group, None)

    @on
    async def capacity_granted(self, event: CapacityGranted, turn: Turn) -> None:
        self.granted |= {str(number): turn.now for number in range(event.first_group, event.first_group + event.groups)}
        _forget_oldest(self.granted)

    @on
    async def interaction_recorded(self, event: InteractionRecorded) -> None:
        self.recorded.setdefault(event.episode, []).append(event)
        _forget_oldest(self.recorded)

    @on
    async def episode_scored(self, event: EpisodeScored) -> None:
        self.scored[event.work.episode] = event
        _forget_oldest(self.scored)

    @on
    async def trajectory_exported(self, event: TrajectoryExported, turn: Turn) -> None:
        trajectory = event.trajectory
        scored = self.scored.pop(trajectory.episode, None)
        prompts = {told.interaction: told.prompt_tokens for told in self.recorded.pop(trajectory.episode, [])}
        self._write(
            turn,
            outcome="exported",
            task_id=trajectory.task,
            task=scored.work.task.data if scored else None,
            episode=trajectory.episode,
            group=trajectory.group,
            attempt=trajectory.attempt,
            purpose="train",
            output=scored.output if scored else "",
            reward=trajectory.reward,
            interactions=[self._whole(made, prompts.get(made.id)) for made in trajectory.interactions],
        )

    @on
    async def episode_evaluated(self, event: EpisodeEvaluated, turn: Turn) -> None:
        self._ended(turn, event, outcome="evaluated", output=event.output, reward=event.reward)

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned, turn: Turn) -> None:
        self._ended(turn, event, outcome="abandoned", reason=event.reason, detail=event.detail)

    def _ended(self, turn: Turn, event: EpisodeEvaluated | EpisodeAbandoned, **fields: Any) -> None:
        work = event.work
        self.scored.pop(work.episode, None)
        interactions = [_told(told) for told in self.recorded.pop(work.episode, [])]
        self._write(
            turn,
            task_id=work.task.id,
            task=work.task.data,
            episode=work.episode,
            group=work.group,
            attempt=work.attempt,
            purpose=work.purpose,
            interactions=interactions,
            **fields,
        )

    def _whole(self, made: Interaction, prompt_tokens: int | None) -> dict[str, Any]:
        return {
            "id": made.id,
            "parent": made.parent,
            "prefix": made.prefix,
            "prompt": self._text(unpack_ids(made.prompt_suffix)),
            "completion": self._text(made.completion.ids_array().tolist()),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(made.completion),
            "finish_reason": made.finish_reason,
            "weight_versions": [made.completion.versions[0].weight_version, made.completion.versions[-1].weight_version],
            "reward": made.reward,
        }

    def _text(self, ids: Sequence[int]) -> str | None:
        return self.decoder.decode(ids, skip_special=False) if self.decoder else None

    def _write(self, turn: Turn, *, interactions: list[dict[str, Any]], **fields: Any) -> None:
        if turn.replayed:
            return
        versions = [version for interaction in interactions for version in interaction["weight_versions"]]
        granted = self.granted.get(fields["group"])
        line = {
            "time": turn.now,
            **fields,
            "interactions": interactions,
            "completion_tokens": sum(interaction["completion_tokens"] for interaction in interactions),
            "weight_versions": [min(versions), max(versions)] if versions else [],
            "seconds": round(turn.now - granted, 3) if granted is not None else None,
        }
        append_line(self.path, json.dumps(line, ensure_ascii=False, default=str))


def _forget_oldest(known: dict[str, Any]) -> None:
    """What is left behind by groups that lost all their episodes, and by attempts that went on after their episode's end."""
    while len(known) > REMEMBERED:
        del known[next(iter(known))]


def _told(told: InteractionRecorded) -> dict[str, Any]:
    return {
        "id": told.interaction,
        "parent": told.parent,
        "prefix": told.prefix,
        "prompt_tokens": told.prompt_tokens,
        "completion_tokens": told.completion_tokens,
        "finish_reason": told.finish_reason,
        "weight_versions": [told.weight_version, told.weight_version],
    }
