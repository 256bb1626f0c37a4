"""Values in messages: tasks, sampling parameters, token columns, interactions and trajectories.

Token columns are bytes (little-endian u32 ids, f32 log-probabilities, version spans), never lists: encoding is 100
times faster and a token takes 8 bytes, 6 or 7 in the log. An interaction stores its parent and its own suffix only.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, dataclass_transform

import msgspec

from areal_actors.core.byte_stream_split import IdStreams, join_streams, set_fields, split_streams, streams_needed
from areal_actors.core.config import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt
from areal_actors.core.lazy import LazyModule
from areal_actors.core.named_reward import NamedReward
from areal_actors.core.span_rewards import SpanCredit, TokenSpan
from areal_bus.message import FrozenMeta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")

PROMPT_VERSION = -1
"""Weight version of a token that was not sampled by a model of this run."""

Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, metaclass=FrozenMeta):
    """Base of values in messages; unknown fields are ignored on receipt."""


class Constraint(Config):
    """Constraint on the text of a completion; the engine masks every token that would violate it."""

    kind: Literal["json_schema", "regex", "lark"]
    """Language of `text`."""
    text: str
    """The schema as JSON text, the regular expression, or a Lark grammar in the dialect of llguidance."""


HIGHEST_TEMPERATURE = 10.0  # of training: beyond it answers are noise


class SamplingParams(Config):
    """Sampling parameters of a completion.

    Log-probabilities are log_softmax(logits / temperature), before penalties, logit bias, constraint, top-k, top-p and
    min-p, which only affect the choice of the token.
    """

    temperature: NonNegativeFloat = 1.0
    """Temperature; 0 selects the most likely token."""
    top_p: float = 1.0
    """Nucleus sampling: considers the most likely tokens up to this total probability."""
    top_k: NonNegativeInt = 0
    """Number of most likely tokens to consider; 0 considers every token."""
    min_p: Fraction = 0.0
    """Considers tokens with at least this share of the most likely token's probability; 0 considers every token."""
    presence_penalty: Penalty = 0.0
    """Subtracted from the logits of tokens that already occur in the completion."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from the logits of such tokens once per occurrence."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these token ids."""
    constraint: Constraint | None = None
    """Constraint on the text of every completion, such as a JSON schema."""
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] = 0
    """Number of most likely tokens to report beside each sampled one."""
    max_tokens: PositiveInt = 512
    """Maximum number of tokens; unset in a recipe, at most half of `generation.max_model_len`."""
    stop: tuple[str, ...] = ()
    """Stop strings, which end the completion; their tokens are kept in the columns and removed from the text."""
    seed: int | None = None
    """Seed of one completion; if not set, derived from the run's seed, the episode and the request."""


class Task(Value):
    """A dataset sample."""

    id: str
    data: dict[str, Any]
    """The row as the agent and the reward function see it."""
    source: str = ""
    """Source of the recipe's mixture that it is drawn from; empty without one."""


class VersionSpan(Value, array_like=True):
    """Tokens start to end (exclusive) of a completion were sampled from this weight version."""

    weight_version: int
    start: int
    """First token, counted from 0."""
    end: int
    """End of the tokens, exclusive."""


class TokenColumns(Value):
    """A completion as the engine sampled it, one entry per token in each column."""

    token_ids: bytes = b""
    """u32, little-endian."""
    logprobs: bytes = b""
    """f32, little-endian; natural logarithm, under the sampling temperature."""
    versions: tuple[VersionSpan, ...] = ()
    """Contiguous spans over all tokens."""

    def __len__(self) -> int:
        return len(self.token_ids) // 4

    def ids_array(self) -> NDArray[np.uint32]:
        """Returns token ids, shape [tokens]; a read-only view."""
        return np.frombuffer(self.token_ids, dtype="<u4")

    def logprobs_array(self) -> NDArray[np.float32]:
        """Returns log-probabilities, shape [tokens]; a read-only view."""
        return np.frombuffer(self.logprobs, dtype="<f4")

    def versions_array(self) -> NDArray[np.int32]:
        """Returns the weight version of each token, shape [tokens]."""
        versions = np.empty(len(self), dtype=np.int32)
        for span in self.versions:
            versions[span.start : span.end] = span.weight_version
        return versions

    @classmethod
    def of(cls, token_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> TokenColumns:
        """Encode three sequences of equal length."""
        return cls(
            token_ids=pack_ids(token_ids),
            logprobs=np.asarray(logprobs, dtype="<f4").tobytes(),
            versions=spans(versions),
        )

    def append(self, later: TokenColumns) -> TokenColumns:
        """Returns these tokens followed by those of a later part of the same completion."""
        return joined_columns((self, later))


def joined_columns(parts: Sequence[TokenColumns]) -> TokenColumns:
    """Returns the parts of a completion, in order, as one."""
    if len(parts) == 1 and len(parts[0].versions) == 1:
        return parts[0]
    versions, tokens = list[VersionSpan](), 0
    for part in parts:
        for span in part.versions:
            same = bool(versions) and versions[-1].weight_version == span.weight_version
            start = versions.pop().start if same else tokens + span.start
            versions.append(VersionSpan(weight_version=span.weight_version, start=start, end=tokens + span.end))
        tokens += len(part)
    token_ids, logprobs = (b"".join([getattr(part, name) for part in parts]) for name in ("token_ids", "logprobs"))
    return TokenColumns(token_ids=token_ids, logprobs=logprobs, versions=tuple(versions))


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Returns token ids as little-endian u32."""
    column = array("I", token_ids)  # faster than NumPy for a list
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def unpack_ids(column: bytes) -> list[int]:
    """Returns the token ids of a packed column."""
    ids: list[int] = np.frombuffer(column, dtype="<u4").tolist()
    return ids


def spans(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    """Returns the run-length encoding of the weight version of each token."""
    spans_so_far: list[VersionSpan] = []
    start = 0
    for end in range(1, len(versions) + 1):
        if end == len(versions) or versions[end] != versions[start]:
            spans_so_far.append(VersionSpan(weight_version=int(versions[start]), start=start, end=end))
            start = end
    return tuple(spans_so_far)


class ImageRef(Value, array_like=True):
    """An image in a prompt: a file beside the log, by the digest of its content, and the place of its tokens."""

    digest: str
    """XXH3 hash of the PNG file in hexadecimal, 128 bits; its name is `images/DIGEST.png` in the run's folder."""
    start: int
    """Index of the first of its placeholder tokens."""
    grid: tuple[int, int, int]
    """Number of patches in time (1), height and width."""
    tokens: int
    """Number of its placeholder tokens: patches that the model merges count as one."""


class Interaction(Value):
    """One model call of an episode."""

    id: str
    parent: str = ""
    """Id of the interaction whose conversation this call continues, by its messages; empty for the first of one."""
    prefix: str = ""
    """Id of the interaction whose prompt and completion tokens this prompt begins with; empty if there is none."""
    follows: tuple[str, ...] = ()
    """Interactions that it continues for credit (`gateway/conversations/credit_links.py`); empty for its parent."""
    role: str = ""
    """Role of the model: a name given with a reward, that of the conversation, or a digest of its system prompt."""
    prompt_suffix: bytes
    """Prompt token ids (u32) after the prefix's prompt and completion; the whole prompt if there is no prefix."""
    completion: TokenColumns
    """Sampled tokens."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`, as reported by the engine; `cancelled` if the client closed the stream."""
    reward: float | None = None
    """Reward that the agent set for this call, before credit assignment."""
    trained: bool = True
    """False for a call that is only context of later calls and not trained (`store: false`)."""
    worker: str = ""
    """Inference worker that sampled the completion; empty if several did."""
    temperature: float | None = None
    """Sampling temperature if the client set one (`gateway.temperature_policy = "as_asked"`); None for the recipe's."""
    routes: bytes = b""
    """Experts of its positions up to the token before its last, without those of its prefix (`core/routes.py`)."""
    call_problem: str = ""
    """Name of the cause for which a tool call that the model wrote did not reach the agent as one, if there is one."""
    fields_ignored: bool = False
    """True if its request had fields, tools or items without effect that matter (`core/ignored_fields.py`)."""
    images: tuple[ImageRef, ...] = ()
    """Images in `prompt_suffix`, by position; `start` counts from the beginning of the suffix."""
    id_planes: IdStreams = 0
    """Bytes of a token id in columns that are byte streams (`byte_stream_split.py`), as sent and logged; else 0."""
    spans: tuple[TokenSpan, ...] = ()
    """Rewards of parts of the completion."""

    def __post_init__(self) -> None:
        """Decode columns that were sent as byte streams."""
        if self.id_planes:
            ids, columns = self.id_planes, self.completion
            token_ids, logprobs = join_streams(columns.token_ids, ids), join_streams(columns.logprobs)
            whole = TokenColumns(token_ids=token_ids, logprobs=logprobs, versions=columns.versions)
            set_fields(self, prompt_suffix=join_streams(self.prompt_suffix, ids), completion=whole, id_planes=0)

    def pack(self) -> Interaction:
        """Returns the interaction with its columns as byte streams, for an encoder."""
        columns = self.completion
        if len(columns.logprobs) % 4 or not (ids := streams_needed(self.prompt_suffix, columns.token_ids)):
            return self
        packed = msgspec.structs.replace(self)
        token_ids, logprobs = split_streams(columns.token_ids, ids), split_streams(columns.logprobs)
        streams = TokenColumns(token_ids=token_ids, logprobs=logprobs, versions=columns.versions)
        set_fields(packed, prompt_suffix=split_streams(self.prompt_suffix, ids), completion=streams, id_planes=ids)
        return packed

    def prompt_text(self, decode: Callable[[list[int]], str | None]) -> str | None:
        """Text of `prompt_suffix`, with the name of its file in place of the tokens of each image.

        None if these have no text.
        """
        ids, parts, end = unpack_ids(self.prompt_suffix), [], 0
        for image in self.images:
            parts += [decode(ids[end : image.start]), f"[{image.digest}.png]"]
            end = image.start + image.tokens
        parts.append(decode(ids[end:]))
        texts = [part for part in parts if part is not None]
        return "".join(texts) if len(texts) == len(parts) else None


EndedBy = Literal["agent", "model"]
"""Party that ended a scored episode: the agent, which returned, or the model, whose output made the agent raise."""


class Trajectory(Value):
    """Exported episode."""

    episode: str
    group: str
    attempt: int
    task: str
    """Id of the task."""
    reward: float
    """Reward of the episode: that of its last completed interaction."""
    interactions: tuple[Interaction, ...]
    metrics: dict[str, float] = {}
    """Further numbers from the reward function."""
    ended_by: EndedBy = "agent"
    """Party that ended the episode."""
    end_cause: str = ""
    """Deed of the model that ended the episode; empty if the agent returned."""
    unanswered_calls: int = 0
    """Number of its calls in flight when the agent returned, or that the agent had left; they are not trained."""
    source: str = ""
    """`Task.source` of its task."""
    role: str = ""
    """Role of its task (`RunEpisode.role`)."""

    def oldest_version(self) -> int:
        """Returns the weight version of the oldest sampled token; -1 if there is none."""
        versions = (span.weight_version for turn in self.interactions for span in turn.completion.versions)
        return min(versions, default=PROMPT_VERSION)

    def sampled_tokens(self) -> int:
        """Returns the number of tokens sampled in all interactions."""
        return sum(len(turn.completion) for turn in self.interactions)


class WeightsLocation(Value):
    """Location of one version of the weights, which are never sent over the bus."""

    folder: str
    """Directory of `*.safetensors`."""
    checksum: str
    """Checksum of all tensors in name order; verified by engines after loading."""
    model: str
    """Hugging Face folder with configuration, tokenizer and chat template."""
    base: str = ""
    """Absolute path of the model that engines load before an adapter, if it is not `model`: a rounded base."""

    def relative_to(self, root: PurePath) -> WeightsLocation:
        """Returns the location for an event, with paths in the run's movable folder `root` relative to it."""
        return msgspec.structs.replace(self, folder=_within(self.folder, root), model=_within(self.model, root))

    def resolve(self, root: PurePath) -> WeightsLocation:
        """Returns the location with absolute paths, given the run's folder `root`."""
        return msgspec.structs.replace(self, folder=str(root / self.folder), model=str(root / self.model))


def _within(path: str, root: PurePath) -> str:
    return str(PurePath(path).relative_to(root)) if PurePath(path).is_relative_to(root) else path


class SequenceCall(Value, array_like=True):
    """Model call that is trained in a row. A call is trained in one row only; in others its tokens are context."""

    start: int
    """Position of the call's first sampled token in the row."""
    end: int
    """Position after its last sampled token."""
    reward: float
    """R(call): reward of every token of the call, after credit assignment along the conversation tree."""
    truncated: bool = False
    """True if generation stopped at the length limit."""
    sample: str = ""
    """Sample of the call in the statistics of its group, where it counts as one value; empty: the row's episode."""
    worker: str = ""
    """Inference worker that sampled the call; empty if several did, or if it is not recorded."""
    temperature: float | None = None
    """Temperature of its log-probabilities, if it is not the recipe's."""
    credited: bool = True
    """False if neither the call nor any that continues it has a reward: under a discount its reward is 0."""
    role: str = ""
    """Role whose samples it is compared with in its group; empty with all of them."""
    call_problem: str = ""
    """Name of the cause for which a tool call in it did not reach the agent as one; empty if there is none."""
    fields_ignored: bool = False
    """True if its request had fields without effect that are no bookkeeping."""
    named_rewards: tuple[NamedReward, ...] = ()
    """Rewards of which `reward` is the weighted sum, in one order for all calls; empty if the recipe names none."""
    baseline: float | None = None
    """Role-wise baseline of its episode; None without one."""
    spans: tuple[SpanCredit, ...] = ()
    """Rewards of parts of it, and of calls after it that are carried to it."""


class TrainingSequence(msgspec.Struct, frozen=True):
    """One training sequence; columns have the same length n, each entry at the position of the token it describes."""

    token_ids: np.ndarray[Any, np.dtype[np.int64]]
    loss_mask: np.ndarray[Any, np.dtype[np.bool_]]
    """True for sampled tokens that are trained."""
    logprobs: np.ndarray[Any, np.dtype[np.float32]]
    """Log-probabilities under the behaviour policy; 0 for prompt tokens."""
    versions: np.ndarray[Any, np.dtype[np.int32]]
    """Weight version per token; -1 for prompt tokens."""
    group: int
    """Index of the row's group within the batch."""
    reward: float
    """Reward of the episode."""
    truncated: bool
    """True if generation of its last call stopped at the length limit."""
    episode: str = ""
    """Name of the episode, shared by its rows. Empty for a row that is a separate episode."""
    calls: tuple[SequenceCall, ...] = ()
    """Calls trained in this row, by position; empty for a row with a single call with the row's reward."""
    routes: bytes = b""
    """Experts of the first positions (`core/routes.py`), at most n - 1; the trainer's router chooses the rest."""
    images: tuple[ImageRef, ...] = ()
    """Images of its prompts, by position; `start` counts from the beginning of the row."""
    image_folder: str = ""
    """Folder of the images' files."""
    ended_by: EndedBy = "agent"
    """Party that ended its episode."""
    unanswered_calls: int = 0
    """Number of calls of its episode without an answer."""
    source: str = ""
    """`Task.source` of its task."""
