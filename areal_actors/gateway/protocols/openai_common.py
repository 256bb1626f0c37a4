"""Fields and answers that OpenAI's dialects share.

They are errors, usage, log-probabilities, and answers in choices, whole or in chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from areal_actors.core.config import Fraction, NonNegativeFloat
from areal_actors.core.values import Constraint, Penalty
from areal_actors.gateway.protocols.base import JSON
from areal_actors.gateway.protocols.fields import (
    Flag,
    LogitBias,
    RequestStruct,
    Seed,
    Stop,
    TopK,
    TopP,
    UnsupportedList,
)
from areal_actors.messages import ModelResponsePart, TokenLogprob

DONE = b"data: [DONE]\n\n"
ANY_JSON = Constraint(kind="json_schema", text='{"type":"object"}')
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "session_over",
    429: "rate_limit_error",
}


class StreamOptions(RequestStruct, ignored=("include_obfuscation",)):
    """Options of a streamed answer."""

    include_usage: Flag = None


class TextFormat(RequestStruct, tag_field="type", tag="text"):
    """Free text."""


class JsonFormat(RequestStruct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class CallFields(RequestStruct, ignored=("user",)):
    """Fields that the three dialects share."""

    model: str = "default"
    temperature: NonNegativeFloat | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stream: Flag = None
    stream_options: StreamOptions | None = None


class ChoiceFields(CallFields, ignored=("metadata",)):
    """Fields of the dialects whose answer has choices: chat completions and completions."""

    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = None
    stop_token_ids: UnsupportedList | None = None


def usage(finished: Sequence[ModelResponsePart]) -> dict[str, Any]:
    """Return the token counts of a call from the last part of each choice: the choices share the prompt."""
    prompt = cached = sampled = reasoning = 0
    for part in finished:
        prompt, cached = max(prompt, part.prompt_tokens), max(cached, part.cached_tokens)
        sampled += part.completion_tokens
        reasoning += part.reasoning_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Return sampled tokens with their log-probabilities; a token with part of a character is exact in `bytes` only."""
    return [
        {**_logprob(token.token, token.logprob), "top_logprobs": [_logprob(text, value) for text, value in token.top]}
        for token in tokens
    ]


def _logprob(token: bytes, value: float) -> dict[str, Any]:
    return {"token": token.decode(errors="replace"), "bytes": list(token), "logprob": value}


def error(message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
    """Return the body of an error."""
    kind = ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field or None, "code": code or None}}


class ChoicesAnswer(ABC):
    """An answer in choices; streamed, it has chunks, each with a delta of one choice.

    All chunks have the id of choice 0, so parts of other choices are held back until its first part.
    """

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, request: ChoiceFields, created: int) -> None:
        self._head: dict[str, Any] = {"id": "", "object": self.chunk_kind, "created": created, "model": request.model}
        self._many = (request.n or 1) > 1
        self._with_usage = request.stream_options is not None and request.stream_options.include_usage is True
        self._held: list[ModelResponsePart] = []
        self._finished: list[ModelResponsePart] = []

    @abstractmethod
    def choice(self, part: ModelResponsePart) -> dict[str, Any]:
        """Return a choice's own fields of a whole answer."""

    @abstractmethod
    def delta(self, part: ModelResponsePart) -> dict[str, Any]:
        """Return a choice's own fields of a chunk."""

    def whole(self, parts: Sequence[ModelResponsePart]) -> dict[str, Any]:
        """See `AnswerWriter`."""
        choices = [_choice(part, self.choice(part), many=len(parts) > 1) for part in parts]
        return {
            **self._head,
            "id": parts[0].interaction,
            "object": self.kind,
            "choices": choices,
            "usage": usage(parts),
        }

    def part(self, part: ModelResponsePart) -> bytes:
        """See `AnswerWriter`."""
        if part.error:
            return _event(error(part.error, part.error_status, part.error_field, part.error_code)) + DONE
        self._held.append(part)
        if not self._head["id"]:
            first = next((held for held in self._held if held.choice == 0), None)
            if first is None:
                return b""
            self._head["id"] = first.interaction
        ready, self._held = self._held, []
        return b"".join([self._chunks(choice) for choice in ready])

    def _chunks(self, part: ModelResponsePart) -> bytes:
        chunk = {**self._head, "choices": [_choice(part, self.delta(part), many=self._many)]}
        if self._with_usage:
            chunk["usage"] = None
        if part.finish_reason:
            self._finished.append(part)
        if not part.last:
            return _event(chunk)
        tail = _event({**self._head, "choices": [], "usage": usage(self._finished)}) if self._with_usage else b""
        return _event(chunk) + tail + DONE


def _choice(part: ModelResponsePart, own: dict[str, Any], *, many: bool) -> dict[str, Any]:
    choice = {"index": part.choice, **own, "finish_reason": part.finish_reason or None}
    return choice | {"interaction_id": part.interaction} if many else choice


def _event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % JSON.encode(data)
