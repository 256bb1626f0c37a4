"""The episode log: every ended episode as one line of `episodes.jsonl`, with its texts, for people and notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from areal_actors.actor import Actor, Turn, on
from areal_actors.messages import (
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    InteractionRecorded,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.values import Interaction, unpack_ids


class Decoder(Protocol):
    """Turns token ids into text."""

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of these tokens."""
        ...


class EpisodeLog(Actor):
    """A listener: what it writes is in the log of the run already, only spread over several events and without texts.

    Fields of a line: `time` (seconds since the epoch), `outcome` (`exported`, `evaluated`, `abandoned`), `reason` and `detail`
    of an abandoned one, `task_id`, `task`, `episode`, `group`, `attempt`, `purpose`, `output` (the agent's text), `reward`,
    `interactions`, `completion_tokens`, `weight_versions` (oldest and newest), `seconds` (since its group was granted, waiting
    and earlier attempts included; null in evaluation). Of an interaction: `id`, `parent`, `prefix`, `prompt` (text after its
    prefix's) and `completion` where the episode was exported, `prompt_tokens`, `completion_tokens`, `finish_reason`, `weight_versions`,
    `reward`.
    """

    def __init__(self, path: Path, load_decoder: Callable[[str], Decoder]) -> None:
        """`load_decoder` takes the model folder that `WeightsPublished` names."""
        self.path = path
        self.load_decoder = load_decoder
        self.decoder: Decoder | None = None
        self.granted: dict[str, float] = {}
        """Time by group."""
        self.recorded: dict[str, list[InteractionRecorded]] = {}
        """By episode, until it ends."""
        self.scored: dict[str, EpisodeScored] = {}

    @on
    async def weights_published(self, event: WeightsPublished) -> None:
        if self.decoder is None:
            self.decoder = self.load_decoder(event.location.model)

    @on
    async def capacity_granted(self, event: CapacityGranted, turn: Turn) -> None:
        self.granted |= {str(number): turn.now for number in range(event.first_group, event.first_group + event.groups)}

    @on
    async def interaction_recorded(self, event: InteractionRecorded) -> None:
        self.recorded.setdefault(event.episode, []).append(event)

    @on
    async def episode_scored(self, event: EpisodeScored) -> None:
        self.scored[event.work.episode] = event

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
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


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
