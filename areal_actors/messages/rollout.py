"""Messages from capacity to sampled tokens: running an episode."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from areal_actors.core.span_rewards import SpanReward
from areal_actors.core.values import Constraint, SamplingParams, Task, Value
from areal_actors.messages.client_traces import ClientTrace
from areal_bus.message import Event, MonitorEvent, Reply, Request, Work

Purpose = Literal["train", "evaluate"]
ITEM_REFERENCE = "item_reference"
"""Key of a value of `ModelRequest.messages` that refers to a part of an earlier answer."""


class CapacityGranted(Event):
    """The staleness gate lets these groups start: numbers first_group to first_group + groups - 1."""

    subject: ClassVar[str] = "capacity.granted"
    first_group: int
    """Number of the first group."""
    groups: int
    """Number of groups."""
    weight_version: int
    """Weight version at the grant."""


class ConcurrencyChanged(Event):
    """The staleness gate has adapted the number of concurrent groups (`staleness_gate.max_concurrent = "auto"`)."""

    subject: ClassVar[str] = "concurrency.changed"
    groups: int
    """Maximum number of groups running at once, from now on."""
    before: int
    """Maximum until now."""
    reason: str


class OffPolicyChanged(Event):
    """Steps have become off policy, or no longer are, or the staleness bound changed (`[staleness_gate.guard]`)."""

    subject: ClassVar[str] = "off_policy.changed"
    step: int
    """Step, counted from 1, whose metrics were judged."""
    outside: tuple[str, ...]
    """Metrics outside of their bands, each with its value and the bound; empty if there is none."""
    max_staleness: int
    """Staleness bound of new groups and of trained tokens, from now on."""
    before: int
    """Bound until now."""


class RunEpisode(Work):
    """Run the agent once on this task."""

    subject: ClassVar[str] = "episode.run"
    episode: str
    group: str
    attempt: int = 1
    attempts_left: int = 0
    """Number of retries left if this attempt is abandoned."""
    task: Task
    purpose: Purpose = "train"
    sampling: SamplingParams
    role: str = ""
    """Role whose baseline its reward is compared with (`algorithm.role_field`); empty without role-wise baselines."""


class EvaluateEpisode(Work):
    """Run the agent once on a held-out task; in a separate queue, so that training episodes do not wait for it."""

    subject: ClassVar[str] = "episode.evaluate"
    work: RunEpisode


class SessionOpened(Reply):
    """Address and key of the session at the gateway; `refused` has the reason if there is none."""

    subject: ClassVar[str] = "session.opened"
    session: str = ""
    base_url: str = ""
    api_key: str = ""
    refused: str = ""
    weight_version: int = -1
    """Newest version that an inference worker has loaded; -1 before the first."""
    gateways: int = 1
    """Number of the run's gateways. Without a session, another of them has those of this group; see
    `gateway_of_group`."""
    leaving: bool = False
    """True if this gateway opens no more sessions, since its process ends in order: another takes its place."""


class OpenSession(Request[SessionOpened]):
    """Record the model calls of this attempt at an episode, replacing the record of any earlier attempt."""

    subject: ClassVar[str] = "session.open"
    reply: ClassVar[type[Reply]] = SessionOpened
    compressed: ClassVar[bool] = True
    work: RunEpisode
    lease_seconds: float


class ToolCallPart(Value, array_like=True):
    """A tool call of the model, or, when streamed, a delta of one."""

    index: int
    """Index of the call within one answer, from 0."""
    id: str = ""
    """Set in the call's first delta."""
    name: str = ""
    """Set in the call's first delta."""
    arguments: str = ""
    """JSON as written by the model; deltas are concatenated."""


class TokenLogprob(Value, array_like=True):
    """One sampled token, for clients that request `logprobs`."""

    token: bytes
    """Text in UTF-8; a token may be part of a character."""
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()
    """Most likely tokens at this position, with their log-probabilities."""


class ModelResponsePart(Reply):
    """A part of the model's answer: a delta of one choice when streamed, a complete choice otherwise."""

    subject: ClassVar[str] = "model.answered"
    interaction: str = ""
    """Id under which this choice is recorded; clients receive that of choice 0 as the answer's id."""
    choice: int = 0
    """Number of the choice, from 0."""
    reasoning: str = ""
    """Text of the model's reasoning."""
    text: str = ""
    """Text of the answer."""
    tool_calls: tuple[ToolCallPart, ...] = ()
    """Tool calls of the answer."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Empty unless requested."""
    finish_reason: str = ""
    """`stop`, `length` or `tool_calls`, in a choice's last part; empty before."""
    stop_sequence: str = ""
    """Stop string that ended the choice."""
    prompt_tokens: int = 0
    """This and `cached_tokens` are set in a choice's first part and in its last, the next two in its last."""
    cached_tokens: int = 0
    """Number of prompt tokens shared with an earlier call of the conversation."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Number of sampled tokens of the reasoning."""
    tool_call_error: str = ""
    """Tool call that could not be parsed; `text` contains it as written by the model."""
    ignored: tuple[str, ...] = ()
    """Fields of the request that are without effect in this run."""
    error: str = ""
    error_status: int = 0
    """HTTP status of the error."""
    error_field: str = ""
    error_code: str = ""
    """OpenAI's error code, such as `context_length_exceeded`."""
    last: bool = False
    """True for the last part of all choices."""

    def is_last(self) -> bool:
        """Returns True also for an error, after which no part follows."""
        return self.last or bool(self.error)


class ModelRequest(Request[ModelResponsePart]):
    """Sample an answer from the model in training, recorded as an interaction; all dialects are parsed into this."""

    subject: ClassVar[str] = "model.call"
    reply: ClassVar[type[Reply]] = ModelResponsePart
    session: str
    messages: tuple[dict[str, Any], ...] = ()
    """Chat messages: role (system, user, assistant, tool), content (text, or parts if there are images:
    `{"type": "text", "text"}` and `{"type": "image", "url"}`, or `"digest"` and `"grid"` once the gateway has stored
    it), and optionally reasoning_content, tool_calls (id, type, function with name and JSON text of arguments),
    tool_call_id, name."""
    has_references: bool = False
    """True if values of assistant messages are `{"item_reference": id, "field": path}`: the content, the reasoning or a
    tool call's function as in the earlier answer whose interaction or tool call has this id; the path is the
    client's."""
    prompt: str | None = None
    """Text to continue without a chat template, instead of messages."""
    prompt_ids: bytes | None = None
    """Token ids (u32) to continue, instead of messages."""
    adds_bos: bool = True
    """True if a text to continue begins with the tokens that the tokenizer puts before every text."""
    continues: str = ""
    """Id of the interaction that `messages` continue, if the client sends it instead of its messages."""
    inherits: bool = False
    """True to inherit the system message and tools of the call that this one continues."""
    tools: tuple[dict[str, Any], ...] = ()
    """`{"type": "function", "function": {"name", "description", "parameters"}}`."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or `function:NAME`."""
    allowed_tools: tuple[str, ...] = ()
    """Names of the tools that may be called, of those in the prompt; empty for all."""
    parallel_tool_calls: bool = True
    """False to allow at most one tool call in an answer."""
    constraint: Constraint | None = None
    """Constraint on the answer's text, from `response_format`."""
    template_kwargs: dict[str, Any] = {}
    """Passed to the chat template unchanged."""
    sampling: dict[str, Any] = {}
    """Fields of `SamplingParams` set by the request; the others have the session's values."""
    choices: int = 1
    """Number of answers."""
    logprobs: bool = False
    stream: bool = False
    store: bool = True
    """False if the client requests not to store the call, which is recorded nevertheless: later calls continue it."""
    request_id: str = ""
    """Idempotency key of the client: a repeated request with the same key gets the same answer, recorded once."""
    client_session: str = ""
    """Name of the conversation at the client, from the header `X-Session-ID`; empty without one."""
    count_only: bool = False
    """Only count the prompt's tokens: the reply is one part with `prompt_tokens`, and nothing is recorded."""
    body_bytes: int = 0
    """Size of the client's request in bytes; large ones are processed outside the event loop."""
    ignored: tuple[str, ...] = ()
    """Fields, tools and headers of the client's request that are accepted without effect."""
    trace: ClientTrace | None = None
    """Span of the client's application in which the call was made, from its header `traceparent`."""
    plain_text: bool = False
    """True if the content of every message is a string, and no message of the model has a name; False if unknown."""


class RewardSet(Reply):
    """The reward was recorded; otherwise `error` has the reason."""

    subject: ClassVar[str] = "reward.noted"
    error: str = ""
    error_status: int = 0


class SetReward(Request[RewardSet]):
    """Set the reward of an interaction, sent by the agent; an empty id is the last completed one."""

    subject: ClassVar[str] = "reward.set"
    reply: ClassVar[type[Reply]] = RewardSet
    session: str
    interaction: str = ""
    reward: float
    role: str = ""
    """Name of the role in which the model answered; empty keeps the call's own."""
    spans: tuple[SpanReward, ...] = ()
    """Rewards of parts of the interaction's completion."""


class CompletionRefused(Event):
    """An inference worker's answer to a model call was inconsistent, an error, or late; it is not recorded.

    The caller gets a 503 and may retry. Unless a retry of the call succeeds, the attempt ends as an `EpisodeAbandoned`
    with the reason `engine`.
    """

    subject: ClassVar[str] = "completion.refused"
    worker: str
    session: str
    episode: str
    interaction: str
    """Id reserved for the call's first choice."""
    check: str
    """`column lengths`, `version spans`, `weight version`, `vocabulary`, `log-probability`, `top log-probabilities`,
    `too many tokens`, `routes`, `no tokens`, `finish reason`, `engine error` or `no answer`."""
    cause: str
    """Check, token (counted from 0 in the completion), value found and value expected."""
    purpose: Purpose = "train"


class ToolsRefused(Event):
    """The gateway refuses requests with tools.

    Known tool calls, rendered through the chat template, were not read back.
    """

    subject: ClassVar[str] = "tools.refused"
    model: str
    """Folder of the model."""
    format: str
    """Name of the answer format that was tested; `none` if there is none."""
    reason: str


Continues = Literal["", "value", "id", "time", "none"]
"""Evidence for the calls that a call continues for credit: its messages, an id in them or in the request, the time, or
none; empty in logs of earlier releases."""


class InteractionRecorded(Event):
    """A model call of an episode was completed. Logs of earlier releases have it as an event of its own."""

    subject: ClassVar[str] = "interaction.recorded"
    session: str
    episode: str
    interaction: str
    parent: str = ""
    """Id of the interaction whose conversation it continues."""
    prefix: str = ""
    """Id of the interaction whose tokens its prompt begins with."""
    prefix_break_reason: str = ""
    """Reason why the prompt does not begin with the parent's tokens, or why a later call has no parent; empty
    otherwise."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    weight_version: int
    """Weight version of the last token."""
    tool_call_error: str = ""
    """Tool call that could not be parsed, which the agent received as text; or a call that it may reject: of an
    undeclared tool, or beyond the first without `parallel_tool_calls`."""
    ignored: tuple[str, ...] = ()
    """Fields, tools and headers of the request that were accepted without effect."""
    trained: bool = True
    """False for a call with `store: false`, which is only context of later calls."""
    purpose: Purpose = "train"
    time: float = 0.0
    """Time of its completion, in seconds since the epoch; 0 in an event of its own, which has the time of the event."""
    request: str = ""
    """Id of the request."""
    attempt: int = 0
    """Attempt at the episode; 0 in logs of earlier releases."""
    continues: Continues = ""
    """Evidence for the calls that it continues for credit."""
    trace: ClientTrace | None = None
    """Span of the client's application in which the call was made; None if the client sends none."""

    def is_of(self, attempt: int) -> bool:
        """False if the call was made by another attempt: a call may be reported after its attempt was abandoned."""
        return self.attempt in {0, attempt}


class InteractionsRecorded(MonitorEvent):
    """Model calls of episodes that go on, or ended without a trajectory, were completed.

    An exported trajectory brings its own.
    """

    subject: ClassVar[str] = "interactions.recorded"
    recorded: tuple[InteractionRecorded, ...]
    """Calls of any number of episodes; each episode's in the order of their completion."""
