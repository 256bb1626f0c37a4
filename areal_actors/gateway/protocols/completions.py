"""OpenAI completions: `/v1/completions`, which continues a raw text or token ids, without a chat template."""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.values import pack_ids
from areal_actors.gateway.protocols import openai_common as openai
from areal_actors.gateway.protocols.base import Dialect
from areal_actors.gateway.protocols.call_fields import sampling
from areal_actors.gateway.protocols.fields import Flag, TokenId, TokenLimit, TopLogprobs, unsupported_error
from areal_actors.messages import ModelRequest, ModelResponsePart


class CompletionRequest(openai.ChoiceFields):
    """A request to `/v1/completions`."""

    prompt: str | Annotated[list[TokenId | str | list[TokenId]], msgspec.Meta(min_length=1)]
    max_tokens: TokenLimit | None = None
    logprobs: TopLogprobs | None = None
    best_of: Literal[1] | None = None
    echo: Flag = None
    suffix: str | None = None
    add_special_tokens: Flag = None


class CompletionAnswer(openai.ChoicesAnswer):
    """Text with log-probabilities in columns."""

    kind = chunk_kind = "text_completion"

    def __init__(self, request: CompletionRequest, created: int) -> None:
        super().__init__(request, created)
        self._lengths: dict[int, int] = {}

    def choice(self, part: ModelResponsePart) -> dict[str, Any]:
        """See `ChoicesAnswer`."""
        return _text(part, 0)

    def delta(self, part: ModelResponsePart) -> dict[str, Any]:
        """See `ChoicesAnswer`."""
        start = self._lengths.get(part.choice, 0)
        self._lengths[part.choice] = start + len(part.text)
        return _text(part, start)


def _call(request: CompletionRequest, session: str) -> ModelRequest:
    for field in ("echo", "suffix"):
        if getattr(request, field):
            raise unsupported_error(field)
    prompt = _prompt(request.prompt)
    return ModelRequest(
        session=session,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_ids=prompt if isinstance(prompt, bytes) else None,
        adds_bos=request.add_special_tokens is not False,
        sampling=sampling(
            request, max_tokens=request.max_tokens, stop=request.stop, top_logprobs=request.logprobs or None
        ),
        choices=request.n or 1,
        logprobs=request.logprobs is not None,
        stream=request.stream is True,
    )


def _prompt(prompt: str | list[int | str | list[int]]) -> str | bytes:
    """Return the only prompt: text, or token ids as u32."""
    single = prompt[0] if len(prompt) == 1 and isinstance(prompt[0], str | list) else prompt
    if not single:
        raise RequestError("'prompt' is empty; send a text or token ids", "prompt")
    if isinstance(single, str):
        return single
    ids = [item for item in single if isinstance(item, int)]
    if len(ids) != len(single):
        raise RequestError("'prompt' contains several prompts; send one request for each", "prompt")
    return pack_ids(ids)


def _text(part: ModelResponsePart, start: int) -> dict[str, Any]:
    """Return text and log-probabilities, in columns of equal length.

    Text offsets count characters of the answer, from `start`.
    """
    if not part.logprobs:
        return {"text": part.text, "logprobs": None}
    texts = [token.token.decode(errors="replace") for token in part.logprobs]
    top = [{text.decode(errors="replace"): value for text, value in token.top} for token in part.logprobs]
    columns = {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in part.logprobs],
        "top_logprobs": top if any(top) else None,
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=start)),
    }
    return {"text": part.text, "logprobs": columns}


COMPLETIONS = Dialect(
    name="completions",
    path="completions",
    summary="OpenAI completions: continue a text or token ids without a chat template",
    request_type=CompletionRequest,
    call=_call,
    answer=CompletionAnswer,
    error=openai.error,
)
