"""From capacity to tokens: what it takes for an episode to run."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from areal_actors.values import Constraint, SamplingParams, Task, TokenColumns, Value
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


class EvaluateEpisode(Work):
    """Run the agent once on a held-out task; in a queue of its own, so that nothing that is trained waits for it."""

    subject: ClassVar[str] = "episode.evaluate"
    work: RunEpisode


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


class ToolCallPart(Value, array_like=True):
    """A tool call of the model, or (streamed) a piece of one."""

    index: int
    """Counts the calls of one answer, from 0."""
    id: str = ""
    """In the call's first piece."""
    name: str = ""
    """In the call's first piece."""
    arguments: str = ""
    """JSON as the model wrote it; pieces follow one another."""


class TokenLogprob(Value, array_like=True):
    """One sampled token as clients ask for it with `logprobs`."""

    token: bytes
    """Its text in UTF-8; a token may be part of a character."""
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()
    """The most likely tokens in its place and their log-probabilities."""


class ModelAnswered(Reply):
    """A part of the model's answer: a piece of one choice when streamed, a whole choice otherwise."""

    subject: ClassVar[str] = "model.answered"
    interaction: str = ""
    """Id under which this choice is recorded; clients know the answer by that of choice 0."""
    choice: int = 0
    reasoning: str = ""
    text: str = ""
    tool_calls: tuple[ToolCallPart, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """Only when asked for."""
    finish_reason: str = ""
    """`stop`, `length` or `tool_calls`, in a choice's last part; empty before."""
    stop_sequence: str = ""
    """The stop string that ended the choice."""
    prompt_tokens: int = 0
    """This and the next two stand in a choice's last part."""
    cached_tokens: int = 0
    """Of the prompt's tokens, those that an earlier call of the conversation had already."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    problem: str = ""
    """What looked like a tool call and does not parse; it stands in `text` as the model wrote it."""
    error: str = ""
    error_status: int = 0
    """HTTP status that says whose fault the error is."""
    error_field: str = ""
    error_code: str = ""
    """OpenAI's word for it, such as `context_length_exceeded`."""
    last: bool = False
    """No other part follows, of any choice."""

    def is_last(self) -> bool:
        """After an error nothing follows either."""
        return self.last or bool(self.error)


class CallModel(Request[ModelAnswered]):
    """Answer as the model being trained would, and record each choice as an interaction. Every dialect is parsed into this."""

    subject: ClassVar[str] = "model.call"
    reply: ClassVar[type[Reply]] = ModelAnswered
    session: str
    messages: tuple[dict[str, Any], ...] = ()
    """Chat messages: role (system, user, assistant, tool), content (text, or parts when there are images), and where they apply
    reasoning_content, tool_calls (id, type, function with name and JSON text of arguments), tool_call_id, name."""
    prompt: str | None = None
    """Instead of messages: text to continue as it is, without a chat template."""
    prompt_ids: bytes | None = None
    """Instead of messages: token ids (u32) to continue."""
    continues: str = ""
    """Id of the interaction that `messages` continue, where the client names it instead of sending its messages again."""
    inherits: bool = False
    """The system message and the tools of the call that this one continues hold for it, too."""
    tools: tuple[dict[str, Any], ...] = ()
    """`{"type": "function", "function": {"name", "description", "parameters"}}`."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or `function:NAME`."""
    parallel_tool_calls: bool = True
    constraint: Constraint | None = None
    """Of the answer's text, from `response_format`."""
    template_kwargs: dict[str, Any] = {}
    """Handed to the chat template as they are."""
    sampling: dict[str, Any] = {}
    """What the request states of `SamplingParams`; the session's own values hold for the rest."""
    choices: int = 1
    logprobs: bool = False
    stream: bool = False
    store: bool = True
    """False: the client asks that the call is not kept. It is recorded all the same, since later calls continue it."""
    request_id: str = ""
    """The client's own name for this request: asked again under the same name it gets the same answer, recorded once."""
    count_only: bool = False
    """Only count the prompt's tokens: one part comes, with `prompt_tokens`; nothing is sampled or recorded."""
    body_bytes: int = 0
    """Size of the client's request; what is long is worked on beside the event loop."""


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
    top_ids: bytes = b""
    """u32 [tokens, sampling.top_logprobs]: the most likely tokens beside each sampled one, most likely first."""
    top_logprobs: bytes = b""
    """f32, same shape."""
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
    sampled: int = 0
    """How many of the last prompt ids were already sampled, by a worker that died."""


class CompletionRefused(Event):
    """An inference worker answered a model call with what cannot be true, with an error, or not in time; nothing of it is recorded.

    The caller gets a 503 and may ask again. Unless the same call is answered soundly then, the attempt ends as an
    `EpisodeAbandoned` with the reason `engine`.
    """

    subject: ClassVar[str] = "completion.refused"
    worker: str
    session: str
    episode: str
    interaction: str
    """Id that the call's first choice would have had."""
    check: str
    """`column lengths`, `version spans`, `weight version`, `vocabulary`, `log-probability`, `top log-probabilities`, `too many tokens`,
    `no tokens`, `finish reason`, `engine error` or `no answer`."""
    cause: str
    """The check, the token (counted from 0 in the completion), what was found and what was expected."""
    purpose: Purpose = "train"


class InteractionRecorded(Event):
    """A model call of an episode is complete."""

    subject: ClassVar[str] = "interaction.recorded"
    session: str
    episode: str
    interaction: str
    parent: str = ""
    """Id of the interaction whose conversation it continues."""
    prefix: str = ""
    """Id of the interaction whose tokens its prompt begins with."""
    split: str = ""
    """Why the prompt does not begin with the parent's tokens, or why a later call has no parent; empty otherwise."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    weight_version: int
    """Of the last token."""
    problem: str = ""
    """What looked like a tool call and did not parse; the agent got it as text."""
    trained: bool = True
    """False: made with `store: false`, and context of later calls only."""
    purpose: Purpose = "train"
