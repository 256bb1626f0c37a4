"""Rows of groups, attempts at episodes, model calls and batches."""

from __future__ import annotations

from typing import ClassVar

from areal_actors.history.row import HistoryRow

OUTPUT_CHARACTERS = 120
"""Characters of an agent's output that a row has, for lists; the whole text is in the log."""


class GroupRecord(HistoryRow, kw_only=True, gc=False):
    """A group of episodes of one task, that the staleness gate let start."""

    table: ClassVar[str] = "group_"
    key: ClassVar[str] = "number"
    number: int
    granted: int
    """Position of the event that let it start."""
    granted_at: float
    weight_version: int
    """Weight version at that time."""


class AttemptRecord(HistoryRow, kw_only=True, gc=False):
    """An attempt at an episode, ended or not. The view `episode` has the newest attempt of every episode."""

    table: ClassVar[str] = "attempt"
    key: ClassVar[str] = "id"
    indexes: ClassVar[tuple[str, ...]] = ("episode", "group_", "ended", "step", "changed")
    id: int
    """Number of the attempt, in the order of their beginnings."""
    changed: int
    """Position of the last event that changed the row."""
    episode: str
    """Name of the episode, `GROUP.MEMBER` in training."""
    attempt: int
    """Number among the attempts at this episode, from 1."""
    group_: str
    """Number of the group; held-out episodes have names of their own."""
    purpose: str
    """`train` or `evaluate`."""
    task: str = ""
    """Id of the task; empty until the attempt is scored or ended."""
    granted: int
    """Position of the event that let it start; of an attempt again, of the failure before it."""
    granted_at: float
    scored: int | None = None
    """Position of its score, whose event has the task and the text that the agent returned."""
    scored_at: float | None = None
    ended: int | None = None
    """Position of its end, whose event has the tokens of an exported episode; null while it runs."""
    ended_at: float | None = None
    outcome: str = ""
    """`exported`, `evaluated`, `abandoned`, `rejected`, `surplus`, or empty while it runs; only `abandoned` is a
    failure."""
    attempts_left: int = 0
    """Number of retries that were left when it was abandoned; the episode ended with it if there is none."""
    reason: str = ""
    """Reason of an abandoned attempt, such as `timeout`."""
    detail: str = ""
    """The same as a sentence."""
    ended_by: str = ""
    """Party at the end: `agent`, `model`, `environment` or `infrastructure`."""
    end_cause: str = ""
    """Deed by which the model ended it."""
    reward: float | None = None
    metrics: str = "{}"
    """Further numbers of the reward function by name, JSON."""
    output: str = ""
    """The first 120 characters of the text that the agent returned, on one line."""
    calls: int = 0
    """Number of completed model calls."""
    prompt_tokens: int = 0
    """Tokens of all prompts, each counted whole."""
    completion_tokens: int = 0
    """Sampled tokens of all calls."""
    oldest_version: int | None = None
    """Oldest weight version that sampled a token."""
    newest_version: int | None = None
    batch: int | None = None
    """Position of the batch that it is part of."""
    step: int | None = None
    """Step, counted from 1, of that batch."""
    trained: int | None = None
    """Position of the publication of the weights of that step."""
    trained_at: float | None = None
    dropped: int | None = None
    """Position of the event by which an exported trajectory was dropped."""
    drop_reason: str = ""
    """`stale`, `incomplete group`, `filtered` or `surplus`."""
    conversation: int | None = None
    """Position of the event with its calls and their tokens, of an attempt without a trajectory; null if the log has
    none."""
    conversation_size: int = 0
    """Bytes of these calls, as `log.conversations.max_mb` counts them."""


TRACE_COLUMNS = ("trace", "trace_span", "trace_state", "baggage")
"""Columns of a call about the client's trace."""


class CallRecord(HistoryRow, kw_only=True, gc=False):
    """A completed model call."""

    table: ClassVar[str] = "call"
    key: ClassVar[str] = "attempt_id, number"
    attempt_id: int
    """`attempt.id`."""
    number: int
    """Number among the calls of the attempt, from 1."""
    interaction: str
    """Id of the call."""
    parent: str = ""
    """Id of the call whose conversation it continues; empty for the first of a conversation."""
    prefix: str = ""
    """Id of the call whose tokens its prompt begins with."""
    continues: str = ""
    """Evidence for the calls that it continues for credit: `value`, `id`, `time`, `none`; empty in older logs."""
    recorded: int
    """Position of the event that reported it."""
    at: float
    """Time of its completion."""
    prompt_tokens: int | None = None
    completion_tokens: int
    oldest_version: int | None = None
    """Oldest weight version that sampled a token."""
    newest_version: int | None = None
    spans: str = ""
    """Pairs of weight version and number of tokens that it sampled, in order, JSON; empty if one version sampled
    all."""
    finish_reason: str
    reward: float | None = None
    """Reward that the agent set for the call."""
    trained: int = 1
    """0 for a call that is only context of later calls."""
    worker: str = ""
    """Inference worker that sampled it; empty if several did."""
    role: str = ""
    """Role in which the model answered."""
    prefix_break_reason: str = ""
    """Reason why its prompt does not begin with the tokens of the call that it continues."""
    tool_call_error: str = ""
    """Tool call of the answer that could not be read."""
    tokens: int | None = None
    """Position of the trajectory with its tokens; null if there is none: see `attempt.conversation`."""
    trace: str = ""
    """Id of the client's trace in which it was made (`traceparent`); empty without one."""
    trace_span: str = ""
    """Id of the client's span."""
    trace_state: str = ""
    """The client's `tracestate`."""
    baggage: str = ""
    """Recorded entries of the client's `baggage`, JSON; empty without any."""


class BatchRecord(HistoryRow, kw_only=True, gc=False):
    """A batch, as it was formed for a step."""

    table: ClassVar[str] = "batch"
    key: ClassVar[str] = "formed"
    formed: int
    """Position of its event."""
    formed_at: float
    changed: int
    """Position of the last event that changed the row."""
    step: int
    """Step, counted from 1."""
    oldest_version: int
    """Tokens of older weights are not trained."""
    trained_trajectories: int
    """Trajectories in batches since the run began."""
    trained_tokens: int
    """Their sampled tokens."""
    dropped_trajectories: int
    """Exported trajectories since the run began that are not trained."""
    dropped_tokens: int
    filtered_groups: int
    """Groups dropped by the filter since the batch before."""
    refused: int = 0
    """Sequences that the trainer left out of the step."""


class BatchMemberRecord(HistoryRow, kw_only=True, gc=False):
    """A trajectory of a batch."""

    table: ClassVar[str] = "batch_member"
    key: ClassVar[str] = "formed, place"
    formed: int
    """`batch.formed`."""
    place: int
    """Number within the batch, from 0."""
    group_index: int
    """Number of its group within the batch, from 0."""
    episode: str
    ended: int
    """Position of its trajectory: `attempt.ended`."""
