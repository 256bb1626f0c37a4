"""What the three OpenAI dialects say alike: errors, usage, log-probabilities, answer formats, chunks of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.config import Fraction, NonNegativeFloat
from areal_actors.dialects.fields import (
    Flag,
    LogitBias,
    RefusedList,
    Seed,
    Stop,
    TopK,
    TopP,
    Unused,
    Wire,
    check_sendable,
    refused,
    stop_strings,
)
from areal_actors.messages import ModelAnswered, TokenLogprob
from areal_actors.values import Constraint, Penalty

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


class SamplingFields(Wire):
    """What chat completions and completions say about sampling."""

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
    stop_token_ids: RefusedList | None = None
    user: Unused = None
    metadata: Unused = None


class StreamOptions(Wire):
    """How a streamed answer ends."""

    include_usage: Flag = None
    include_obfuscation: Unused = None


def sampling(request: SamplingFields, max_tokens: int | None) -> dict[str, Any]:
    """What the request states of `SamplingParams`.

    Raises:
        RequestError: a field cannot be honoured.
    """
    if request.repetition_penalty not in (None, 1):
        raise refused("repetition_penalty", "use frequency_penalty or presence_penalty")
    stated = {
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
    return {name: value for name, value in stated.items() if value is not None}


def json_constraint(schema: dict[str, Any], field: str) -> Constraint:
    """The answer's text is JSON of this schema, which stands in this field.

    Raises:
        RequestError: the schema is nested too deeply, or has an integer of more than 64 bits.
    """
    check_sendable(schema, field)
    return Constraint(kind="json_schema", text=JSON.encode(schema).decode())


def usage(finished: Sequence[ModelAnswered]) -> dict[str, Any]:
    """Token counts of a call from the last part of each choice: the choices share the prompt."""
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
    """Sampled tokens with their log-probabilities; a token that is part of a character is whole in `bytes` only."""
    return [
        {**_logprob(token.token, token.logprob), "top_logprobs": [_logprob(text, value) for text, value in token.top]} for token in tokens
    ]


def _logprob(token: bytes, value: float) -> dict[str, Any]:
    return {"token": token.decode(errors="replace"), "bytes": list(token), "logprob": value}


def error(message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
    """The body of an error."""
    kind = ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field or None, "code": code or None}}


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return b"data: %b\n\n" % JSON.encode(data)


class ChunkStream(ABC):
    """A streamed answer in chunks, each with a piece of one choice.

    All chunks bear the id of choice 0, so what comes of other choices before it is held back.
    """

    def __init__(self, kind: str, model: str, created: int, *, choices: int, with_usage: bool) -> None:
        self._head: dict[str, Any] = {"id": "", "object": kind, "created": created, "model": model}
        self._many = choices > 1
        self._with_usage = with_usage
        self._held: list[ModelAnswered] = []
        self._finished: list[ModelAnswered] = []

    @abstractmethod
    def choice(self, part: ModelAnswered) -> dict[str, Any]:
        """This piece of a choice, without index, finish reason and interaction."""

    def part(self, part: ModelAnswered) -> bytes:
        """The chunks for a part of the answer, and the end of the stream after the last."""
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

    def _chunks(self, part: ModelAnswered) -> bytes:
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
