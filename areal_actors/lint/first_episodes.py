"""Facts about the first training episodes of a run, from the events of its log."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from areal_actors.core.ignored_fields import effective_fields
from areal_actors.core.values import Trajectory
from areal_actors.messages import EpisodeAbandoned, EpisodeScored, InteractionRecorded, TrajectoryExported, recorded_calls
from areal_actors.sequences.build import last_trained
from areal_actors.sequences.credit import Credit, calls_without_credit
from bus.message import Message

MOST_EPISODES = 512
"""Episodes whose facts are kept."""


@dataclass
class Episode:
    """An exported episode."""

    name: str
    group: str
    reward: float
    sampled: int
    """Hash of all sampled token ids."""
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
    """Rewards of episodes whose output ends with the task's reference."""
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
            case EpisodeScored() if message.work.purpose == "train" and message.reward is not None:
                if ends_with(message.output, reference_of(message.work.task.data)):
                    self.right_by_text[message.work.episode] = message.reward
            case EpisodeAbandoned() if message.work.purpose == "train" and message.reason not in {"rejected", "surplus"}:
                self.abandoned[f"{message.reason}: {message.detail}"].append(message.work.episode)

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
    return Episode(
        name=trajectory.episode,
        group=trajectory.group,
        reward=trajectory.reward,
        sampled=hash(tuple(call.completion.token_ids for call in trajectory.interactions)),
        truncated=last_trained(trajectory.interactions).finish_reason == "length",
        uncredited=len(calls_without_credit(trajectory, credit)),
        end_cause=(trajectory.end_cause or trajectory.ended_by) if trajectory.ended_by == "model" else "",
        role_rewards=role_rewards,
    )


def reference_of(task: dict[str, object]) -> str:
    """Returns the result in a task's `answer`: all of it, or the text after `####`; empty if there is none."""
    answer = task.get("answer")
    if not isinstance(answer, str | int | float) or isinstance(answer, bool):
        return ""
    return str(answer).rpartition("####")[2].strip()


def ends_with(output: str, reference: str) -> bool:
    """True if the last result in an output, a number or the last line's words, is the reference."""
    if not reference or not output.strip():
        return False
    if re.fullmatch(r"-?[\d.,]+", reference):
        numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", output)
        return bool(numbers) and numbers[-1].replace(",", "") == reference.replace(",", "").rstrip(".")
    last = output.strip().splitlines()[-1].strip(" .*`\"'()$").casefold()
    return last.endswith(reference.casefold())
