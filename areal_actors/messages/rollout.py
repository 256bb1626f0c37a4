"""From capacity to tokens: what it takes for an episode to run."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from areal_actors.values import SamplingParams, Task, TokenColumns
from bus.message import Event, Reply, Request, Work

Purpose = Literal["train", "evaluate"]


class CapacityGranted(Event):
    """The staleness gate lets these groups start: numbers first_group to first_group + groups - 1."""

    subject: ClassVar[str] = "capacity.granted"
    first_group: int
    groups: int
    weight_version: int


class RunEpisode(Work):
    """Run the agent once on this task."""

    subject: ClassVar[str] = "episode.run"
    episode: str
    group: str
    attempt: int = 1
    attempts_left: int = 0
    """How often the episode may be tried again if it is abandoned."""
    task: Task
    purpose: Purpose = "train"
    sampling: SamplingParams


class SessionOpened(Reply):
    """The gateway serves the session at this address with this key; `refused` says why not."""

    subject: ClassVar[str] = "session.opened"
    session: str = ""
    base_url: str = ""
    api_key: str = ""
    refused: str = ""


class OpenSession(Request[SessionOpened]):
    """Keep a record of the model calls of this attempt at an episode, in place of any earlier attempt's."""

    subject: ClassVar[str] = "session.open"
    reply: ClassVar[type[Reply]] = SessionOpened
    work: RunEpisode
    lease_seconds: float


class ChatCompleted(Reply):
    """A part of the model's answer; the last part has a finish reason or an error."""

    subject: ClassVar[str] = "chat.completed"
    interaction: str = ""
    text: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""
    error_status: int = 0
    """HTTP status that says whose fault the error is."""
    error_field: str = ""

    def is_last(self) -> bool:
        """The last part says how the answer ended."""
        return bool(self.finish_reason or self.error)


class CompleteChat(Request[ChatCompleted]):
    """Answer these chat messages as the model being trained would, and record the interaction."""

    subject: ClassVar[str] = "chat.complete"
    reply: ClassVar[type[Reply]] = ChatCompleted
    session: str
    messages: tuple[dict[str, Any], ...]
    options: dict[str, Any] = {}
    """Sampling parameters that the request states; the session's own hold for the rest."""
    stream: bool = False


class RewardSet(Reply):
    """The reward is noted; `error` says why not."""

    subject: ClassVar[str] = "reward.noted"
    error: str = ""
    error_status: int = 0


class SetReward(Request[RewardSet]):
    """The agent itself says what an interaction was worth; an empty id is the last completed one."""

    subject: ClassVar[str] = "reward.set"
    reply: ClassVar[type[Reply]] = RewardSet
    session: str
    interaction: str = ""
    reward: float


class Generated(Reply):
    """The next tokens of a completion; the last part has a finish reason or an error."""

    subject: ClassVar[str] = "tokens.generated"
    columns: TokenColumns = TokenColumns()
    text: str = ""
    finish_reason: str = ""
    error: str = ""
    error_field: str = ""
    """Names the field when the request was wrong; empty when the engine failed."""

    def is_last(self) -> bool:
        """The last part says how the completion ended."""
        return bool(self.finish_reason or self.error)


class Generate(Request[Generated]):
    """Continue these tokens."""

    subject: ClassVar[str] = "tokens.generate"
    reply: ClassVar[type[Reply]] = Generated
    prompt_ids: bytes
    sampling: SamplingParams
    stream: bool = False


class InteractionRecorded(Event):
    """A model call of an episode is complete."""

    subject: ClassVar[str] = "interaction.recorded"
    session: str
    episode: str
    interaction: str
    parent: str = ""
    split: str = ""
    """Why the prompt does not continue an earlier interaction's tokens although its messages do; empty otherwise."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    weight_version: int
    """Of the last token."""
    purpose: Purpose = "train"
