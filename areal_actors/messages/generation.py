"""Requests for completions to an inference worker, and its answers.

A request may leave out the beginning of its prompt where the worker holds it. Prompts are named by a digest of all of
their tokens, so that a worker never continues other tokens than those that the gateway records.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from areal_actors.core.byte_stream_split import IdStreams, join_streams, set_fields, split_streams, streams_needed
from areal_actors.core.token_digest import TokenDigest
from areal_actors.core.values import ImageRef, SamplingParams, TokenColumns
from areal_bus.message import Message, Reply, Request

LONG_PROMPT_BYTES = 64 << 10
"""Size of token ids from which fewer bytes on the way take less time than their split."""
PrefixProblem = Literal["", "missing", "mismatch"]


class Generated(Reply):
    """Next tokens of a completion; the last part has a finish reason or an error."""

    subject: ClassVar[str] = "tokens.generated"
    columns: TokenColumns = TokenColumns()
    top_ids: bytes = b""
    """u32 [tokens, sampling.top_logprobs]: most likely tokens beside each sampled one, in descending order."""
    top_logprobs: bytes = b""
    """f32, same shape."""
    routes: bytes = b""
    """Experts of the next positions from `Generate.routes_from` on (`core/routes.py`); a part may have routes only."""
    finish_reason: str = ""
    error: str = ""
    error_field: str = ""
    """Name of the invalid field of the request; empty if the engine failed."""
    prefix_problem: PrefixProblem = ""
    """Reason for which the worker cannot complete the prompt of the request, which has to be sent whole: it does not
    hold the prefix (`missing`), or prefix and ids do not have the digest of the prompt (`mismatch`)."""

    def is_last(self) -> bool:
        """Returns True for the part with a finish reason, an error or a problem of the prefix."""
        return bool(self.finish_reason or self.error or self.prefix_problem)


class Generate(Request[Generated]):
    """Continue these tokens: those of a prefix that the worker holds, and these ids after them."""

    subject: ClassVar[str] = "tokens.generate"
    reply: ClassVar[type[Reply]] = Generated
    prompt_ids: bytes
    """Token ids (u32) of the prompt after its prefix; all of them without a prefix."""
    sampling: SamplingParams
    stream: bool = False
    resumed_tokens: int = 0
    """Number of prompt ids, at the end, that were already sampled, by a worker that died."""
    routes_from: int | None = None
    """First position whose experts are to be reported; None if none are."""
    images: tuple[ImageRef, ...] = ()
    """Images in the prompt, by position."""
    id_planes: IdStreams = 0
    """As sent, the number of byte streams (`core/byte_stream_split.py`) of `prompt_ids`; 0 once decoded."""
    prefix: bytes = b""
    """Digest (`core/token_digest.py`) of the tokens before `prompt_ids`; empty if there are none."""
    prefix_tokens: int = 0
    """Number of the tokens before `prompt_ids`."""
    digest: bytes = b""
    """Digest of the whole prompt, by which the worker holds it; empty if it need not hold it."""

    def __post_init__(self) -> None:
        """Decode ids that were sent as byte streams."""
        if self.id_planes:
            set_fields(self, prompt_ids=join_streams(self.prompt_ids, self.id_planes), id_planes=0)

    def pack(self) -> Generate:
        """Returns the request with its ids as byte streams, if they are many: a request is not kept."""
        if len(self.prompt_ids) < LONG_PROMPT_BYTES or not (streams := streams_needed(self.prompt_ids)):
            return self
        packed = msgspec.structs.replace(self)
        set_fields(packed, prompt_ids=split_streams(self.prompt_ids, streams), id_planes=streams)
        return packed

    def is_equivalent(self, other: Message) -> bool:
        """True if both continue the same tokens in the same way, however much of them each names by its digest."""
        if not isinstance(other, Generate):
            return False
        mine, theirs = (
            msgspec.structs.replace(each, prompt_ids=b"", prefix=b"", prefix_tokens=0, digest=each.prompt_digest())
            for each in (self, other)
        )
        return mine == theirs and self.prompt_tokens() == other.prompt_tokens()

    def prompt_tokens(self) -> int:
        """Returns the length of the prompt."""
        return self.prefix_tokens + len(self.prompt_ids) // 4

    def prompt_digest(self) -> bytes:
        """Returns the digest of the whole prompt."""
        return self.digest or TokenDigest(self.prompt_ids).value()
