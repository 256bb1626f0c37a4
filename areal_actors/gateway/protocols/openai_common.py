"""Code that the three OpenAI dialects share: errors, usage, log-probabilities, answer formats, chunks of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.config import Fraction, NonNegativeFloat
from areal_actors.core.values import Constraint, Penalty
from areal_actors.gateway.protocols.fields import (
    Flag,
    Ignored,
    LogitBias,
    RequestStruct,
    Seed,
    Stop,
    TopK,
    TopP,
    UnsupportedList,
    check_encodable,
    stop_strings,
    unsupported,
)
from areal_actors.messages import ModelResponsePart, TokenLogprob

JSON = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "session_over",
    429: "rate_limit_error",
}


class SamplingFields(RequestStruct):
    """Sampling fields that chat completions and completions share."""

    model: str = "default"
    temperature: NonNegativeFloat | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    stream: Flag = None
    stream_options: StreamOptions | None = None
    repetition_penalty: float | None = None
    stop_token_ids: UnsupportedList | None = None
    user: Ignored = None
    metadata: Ignored = None


class StreamOptions(RequestStruct):
    """Options of a streamed answer."""

    include_usage: Flag = None
    include_obfuscation: Ignored = None


def sampling(request: SamplingFields, max_tokens: int | None) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that the request sets.

    Raises:
        RequestError: a value is not supported.
    """
    if request.repetition_penalty not in (None, 1):
        raise unsupported("repetition_penalty", "use frequency_penalty or presence_penalty")
    params = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": request.logit_bias,
        "seed": request.seed,
        "max_tokens": max_tokens,
        "top_k": None if request.top_k is None else max(request.top_k, 0),
        "stop": stop_strings(request.stop) or None,
    }
    return {name: value for name, value in params.items() if value is not None}


def json_constraint(schema: dict[str, Any], field: str) -> Constraint:
    """Return the constraint of an answer to JSON of this schema; errors name `field`.

    Raises:
        RequestError: the schema is nested too deeply, or has an integer of more than 64 bits.
    """
    check_encodable(schema, field)
    return Constraint(kind="json_schema", text=JSON.encode(schema).decode())


def usage(finished: Sequence[ModelResponsePart]) -> dict[str, Any]:
    """Return the token counts of a call from the last part of each choice: the choices share the prompt."""
    prompt = max((part.prompt_tokens for part in finished), default=0)
    sampled = sum(part.completion_tokens for part in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": max((part.cached_tokens for part in finished), default=0)},
        "completion_tokens_details": {"reasoning_tokens": sum(part.reasoning_tokens for part in finished)},
    }


def logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Return sampled tokens with their log-probabilities; a token with part of a character is exact in `bytes` only."""
    return [
        {**_logprob(token.token, token.logprob), "top_logprobs": [_logprob(text, value) for text, value in token.top]} for token in tokens
    ]


def _logprob(token: bytes, value: float) -> dict[str, Any]:
    return {"token": token.decode(errors="replace"), "bytes": list(token), "logprob": value}


def error(message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
    """Return the body of an error."""
    kind = ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field or None, "code": code or None}}


def event(data: dict[str, Any]) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: %b\n\n" % JSON.encode(data)


class ChunkStream(ABC):
    """A streamed answer in chunks, each with a delta of one choice.

    All chunks have the id of choice 0, so parts of other choices are held back until its first part.
    """

    def __init__(self, kind: str, model: str, created: int, *, choices: int, with_usage: bool) -> None:
        self._head: dict[str, Any] = {"id": "", "object": kind, "created": created, "model": model}
        self._many = choices > 1
        self._with_usage = with_usage
        self._held: list[ModelResponsePart] = []
        self._finished: list[ModelResponsePart] = []

    @abstractmethod
    def choice(self, part: ModelResponsePart) -> dict[str, Any]:
        """Return the choice's delta, without index, finish reason and interaction."""

    def part(self, part: ModelResponsePart) -> bytes:
        """Return the chunks for a part of the answer, and the end of the stream after the last one."""
        if part.error:
            return event(error(part.error, part.error_status, part.error_field, part.error_code)) + DONE
        self._held.append(part)
        if not self._head["id"]:
            first = next((held for held in self._held if held.choice == 0), None)
            if first is None:
                return b""
            self._head["id"] = first.interaction
        ready, self._held = self._held, []
        return b"".join([self._chunks(one) for one in ready])

    def _chunks(self, part: ModelResponsePart) -> bytes:
        choice = {"index": part.choice, **self.choice(part), "finish_reason": part.finish_reason or None}
        if self._many:
            choice["interaction_id"] = part.interaction
        chunk = {**self._head, "choices": [choice]}
        if self._with_usage:
            chunk["usage"] = None
        if part.finish_reason:
            self._finished.append(part)
        if not part.last:
            return event(chunk)
        tail = event({**self._head, "choices": [], "usage": usage(self._finished)}) if self._with_usage else b""
        return event(chunk) + tail + DONE
