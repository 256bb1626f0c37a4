"""Facts about the first training episodes of a run, from the events of its log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from areal_actors.core.ignored_fields import effective_fields
from areal_actors.core.values import Trajectory
from areal_actors.lint.stated_answers import reference_of, states_reference
from areal_actors.messages import (
    EpisodeAbandoned,
    EpisodeScored,
    InteractionRecorded,
    TrajectoryExported,
    recorded_calls,
)
from areal_actors.messages.episode_ends import is_failure
from areal_actors.sequences.build import last_trained
from areal_actors.sequences.credit import Credit, calls_without_credit
from areal_bus.message import Message

MOST_EPISODES = 512
"""Episodes whose facts are kept."""
MARK = re.compile(r"<\|[A-Za-z_]{2,40}\|>|\[/?INST\]|<(?:start|end)_of_turn>")
"""Marks with which chat templates separate turns."""


@dataclass
class Episode:
    """An exported episode."""

    name: str
    group: str
    reward: float
    task: str
    """Id of its task."""
    sampled: int
    """Hash of all sampled token ids; 0 if the log has none, as an imported one."""
    prompts: int
    """Hash of the new tokens and the images of all prompts."""
    calls: int
    """Number of its calls."""
    is_empty: bool
    """True if its last trained call ended at once, with one token at most."""
    truncated: bool
    uncredited: int
    """Number of trained calls that no reward reaches."""
    end_cause: str
    """Cause for which the model itself ended it; empty if it did not."""
    role_rewards: dict[str, list[float]]
    """Rewards that were set for calls, by role."""


@dataclass
class FirstEpisodes:
    """Folds the events of training episodes; `credit` is the recipe's."""

    credit: Credit
    episodes: list[Episode] = field(default_factory=list)
    calls: int = 0
    lost_calls: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Episodes with tool calls that were not read, by their cause."""
    ignored_fields: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Episodes with requests that had fields without effect, by the field."""
    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Episodes with calls whose prompts do not extend the tokens of the call before, by the reason."""
    right_by_text: dict[str, float] = field(default_factory=dict)
    """Rewards of episodes whose output states the task's reference as its result."""
    unscored: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """An episode and the row of each task at which a reward function failed, by the task's id."""
    marked: list[str] = field(default_factory=list)
    """Episodes with the mark of a chat template in the texts of their task, or in their output."""
    abandoned: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Abandoned attempts, by reason and detail."""

    def receive(self, message: Message) -> None:
        """Fold an event; nothing more once there are `MOST_EPISODES`."""
        if len(self.episodes) >= MOST_EPISODES:
            return
        for call in recorded_calls(message):
            if call.purpose == "train":
                self._call(call)
        match message:
            case TrajectoryExported():
                self.episodes.append(_episode(message.trajectory, self.credit))
            case EpisodeScored() if message.work.purpose == "train":
                self._add_score(message)
            case EpisodeAbandoned() if message.work.purpose == "train" and is_failure(message):
                self.abandoned[f"{message.reason}: {message.detail}"].append(message.work.episode)
                if message.reason == "reward":
                    self.unscored.setdefault(message.work.task.id, (message.work.episode, message.work.task.data))

    def _add_score(self, event: EpisodeScored) -> None:
        name, data = event.work.episode, event.work.task.data
        if event.reward is not None and states_reference(event.output, reference_of(data)):
            self.right_by_text[name] = event.reward
        if any(MARK.search(text) for text in (event.output, *_texts(data))):
            self.marked.append(name)

    def _call(self, call: InteractionRecorded) -> None:
        self.calls += 1
        if call.tool_call_error:
            self.lost_calls[call.tool_call_error].append(call.episode)
        for name in effective_fields(call.ignored):
            self.ignored_fields[name].append(call.episode)
        if call.prefix_break_reason:
            self.broken[call.prefix_break_reason].append(call.episode)

    def groups(self) -> list[list[Episode]]:
        """Returns the episodes of each group with at least two."""
        groups: dict[str, list[Episode]] = {}
        for episode in self.episodes:
            groups.setdefault(episode.group, []).append(episode)
        return [group for group in groups.values() if len(group) > 1]


def _episode(trajectory: Trajectory, credit: Credit) -> Episode:
    role_rewards: dict[str, list[float]] = {}
    for call in trajectory.interactions:
        if call.reward is not None and call.trained:
            role_rewards.setdefault(call.role, []).append(call.reward)
    last = last_trained(trajectory.interactions)
    return Episode(
        name=trajectory.episode,
        group=trajectory.group,
        reward=trajectory.reward,
        task=trajectory.task,
        sampled=hash(tuple(call.completion.token_ids for call in trajectory.interactions))
        if trajectory.sampled_tokens()
        else 0,
        prompts=hash(
            tuple((call.prompt_suffix, *(image.digest for image in call.images)) for call in trajectory.interactions)
        ),
        calls=len(trajectory.interactions),
        is_empty=last.finish_reason == "stop" and len(last.completion) <= 1,
        truncated=last.finish_reason == "length",
        uncredited=len(calls_without_credit(trajectory, credit)),
        end_cause=(trajectory.end_cause or trajectory.ended_by) if trajectory.ended_by == "model" else "",
        role_rewards=role_rewards,
    )


def _texts(value: object) -> Iterator[str]:
    """Texts of a task."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
