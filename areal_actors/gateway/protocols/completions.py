"""OpenAI completions: `/v1/completions`, which continues a raw text or token ids, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.values import pack_ids
from areal_actors.gateway.protocols import openai_common as openai
from areal_actors.gateway.protocols.fields import Flag, TokenId, TokenLimit, TopLogprobs, decode, unsupported
from areal_actors.messages import ModelRequest, ModelResponsePart, TokenLogprob


class CompletionRequest(openai.SamplingFields):
    """A request to `/v1/completions`."""

    prompt: str | Annotated[list[TokenId | str | list[TokenId]], msgspec.Meta(min_length=1)]
    max_tokens: TokenLimit | None = None
    logprobs: TopLogprobs | None = None
    best_of: Literal[1] | None = None
    echo: Flag = None
    suffix: str | None = None


DECODER = msgspec.json.Decoder(CompletionRequest)


class Completions:
    """The dialect."""

    name = "completions"
    path = "completions"
    request_type = CompletionRequest

    def decode(self, body: bytes) -> CompletionRequest:
        """See `Dialect`."""
        return decode(DECODER, body)

    def call(self, request: CompletionRequest, session: str) -> ModelRequest:
        """See `Dialect`."""
        if request.echo:
            raise unsupported("echo")
        if request.suffix:
            raise unsupported("suffix")
        params = openai.sampling(request, request.max_tokens)
        if request.logprobs:
            params["top_logprobs"] = request.logprobs
        prompt = _prompt(request.prompt)
        return ModelRequest(
            session=session,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_ids=prompt if isinstance(prompt, bytes) else None,
            sampling=params,
            choices=request.n or 1,
            logprobs=request.logprobs is not None,
            stream=request.stream is True,
        )

    def is_streaming(self, request: CompletionRequest) -> bool:
        """See `Dialect`."""
        return request.stream is True

    def response_body(self, request: CompletionRequest, parts: Sequence[ModelResponsePart], created: int) -> dict[str, Any]:
        """See `Dialect`."""
        ordered = sorted(parts, key=lambda part: part.choice)
        return {
            "id": ordered[0].interaction,
            "object": "text_completion",
            "created": created,
            "model": request.model,
            "choices": [_choice(part, many=len(ordered) > 1) for part in ordered],
            "usage": openai.usage(ordered),
        }

    def events(self, request: CompletionRequest, created: int) -> CompletionStream:
        """See `Dialect`."""
        return CompletionStream(request, created)

    def error(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
        """See `Dialect`."""
        return openai.error(message, status, field, code)


class CompletionStream(openai.ChunkStream):
    """Chunks of text."""

    def __init__(self, request: CompletionRequest, created: int) -> None:
        with_usage = request.stream_options is not None and request.stream_options.include_usage is True
        super().__init__("text_completion", request.model, created, choices=request.n or 1, with_usage=with_usage)
        self._lengths: dict[int, int] = {}

    def choice(self, part: ModelResponsePart) -> dict[str, Any]:
        """See `ChunkStream`."""
        start = self._lengths.get(part.choice, 0)
        self._lengths[part.choice] = start + len(part.text)
        return {"text": part.text, "logprobs": _logprobs(part.logprobs, start)}


def _prompt(prompt: str | list[int | str | list[int]]) -> str | bytes:
    """Return the only prompt: text, or token ids as u32."""
    one = prompt[0] if len(prompt) == 1 and isinstance(prompt[0], str | list) else prompt
    if not one:
        raise RequestError("'prompt' is empty; send a text or token ids", "prompt")
    if isinstance(one, str):
        return one
    ids = [item for item in one if isinstance(item, int)]
    if len(ids) != len(one):
        raise RequestError("'prompt' contains several prompts; send one request for each", "prompt")
    return pack_ids(ids)


def _choice(part: ModelResponsePart, *, many: bool) -> dict[str, Any]:
    choice = {"index": part.choice, "text": part.text, "logprobs": _logprobs(part.logprobs, 0), "finish_reason": part.finish_reason}
    if many:
        choice["interaction_id"] = part.interaction
    return choice


def _logprobs(tokens: Sequence[TokenLogprob], start: int) -> dict[str, Any] | None:
    """Return columns of equal length; text offsets count characters of the answer, from `start`."""
    if not tokens:
        return None
    texts = [token.token.decode(errors="replace") for token in tokens]
    offsets = [start]
    for text in texts[:-1]:
        offsets.append(offsets[-1] + len(text))
    top = [{text.decode(errors="replace"): value for text, value in token.top} for token in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": top if any(top) else None,
        "text_offset": offsets,
    }
