"""One chat completion: prompt tokens from the conversation, tokens from an inference worker, an interaction in the end.

A worker that dies is replaced in mid-completion: the next one continues after the tokens that have already been handed
on, which keep their log-probabilities and versions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from areal_actors import conversation
from areal_actors.actor import Turn
from areal_actors.conversation import Prompt, Tokenizer, prompt_for
from areal_actors.errors import EngineError, RequestError
from areal_actors.messages import ChatCompleted, CompleteChat, Generate, Generated
from areal_actors.values import SamplingParams, TokenColumns, pack_ids
from areal_actors.worker_pool import WorkerLost, WorkerPool, until_gone
from bus.errors import BusError, NoResponder


def sampling_of(options: Mapping[str, Any], default: SamplingParams, *, trained: bool) -> SamplingParams:
    """What a request states, and the session's own for the rest.

    Raises:
        RequestError: a value is of the wrong type or out of range, or a completion that is to be trained (`trained`) would
            be sampled at another temperature than that at which the trainer takes log-probabilities.
    """
    known = {key: value for key, value in msgspec.to_builtins(default).items() if value is not None}
    try:
        sampling = msgspec.convert({**known, **options}, SamplingParams)
    except msgspec.ValidationError as error:
        complaint, _, at = str(error).partition(" - at `$.")
        field = at.rstrip("`").partition("[")[0]
        raise RequestError(f"'{field}': {complaint[0].lower()}{complaint[1:]}", field) from None
    if not 0 < sampling.top_p <= 1:
        raise RequestError(f"'top_p' is {sampling.top_p:g}; expected a number above 0, at most 1", "top_p")
    if trained and sampling.temperature != default.temperature:
        raise RequestError(
            f"'temperature' is {sampling.temperature:g}, but this run trains at {default.temperature:g}: "
            f"leave it out, or set sampling.temperature={sampling.temperature:g} in the recipe",
            "temperature",
        )
    return sampling


class Completion:
    """A completion under way: the prompt, and what has been sampled so far."""

    def __init__(
        self,
        identifier: str,
        request: CompleteChat,
        sampling: SamplingParams,
        turns: Sequence[conversation.Turn],
        tokenizer: Tokenizer,
        context: int,
    ) -> None:
        self.identifier = identifier
        self.request = request
        self.tokenizer = tokenizer
        self.prompt: Prompt = prompt_for(turns, request.messages, tokenizer)
        self.sampling = _within(context, len(self.prompt.token_ids), sampling)
        self.columns = TokenColumns()
        self.text = ""
        self.finish_reason = ""

    def question(self, seed: int) -> Generate:
        """What to ask an inference worker now."""
        sampled = len(self.columns)
        stated = self.sampling.seed
        rest = msgspec.structs.replace(
            self.sampling, max_tokens=self.sampling.max_tokens - sampled, seed=seed if stated is None else stated
        )
        return Generate(prompt_ids=pack_ids(self.prompt.token_ids) + self.columns.token_ids, sampling=rest, stream=self.request.stream)

    def heard(self, part: Generated) -> None:
        """Take in the next tokens.

        Raises:
            RequestError: the worker refused the request.
            EngineError: its engine failed, or ended without a token.
        """
        if part.error_field:
            raise RequestError(part.error, part.error_field)
        if part.error:
            raise EngineError(part.error)
        self.columns = self.columns.joined(part.columns) if len(self.columns) else part.columns
        self.text += part.text
        self.finish_reason = part.finish_reason
        if part.finish_reason and not self.columns:
            raise EngineError("the inference worker ended the completion without a single token")

    def interrupted(self) -> None:
        """The worker is gone; if only the word that the length is reached is missing, nobody has to go on."""
        if len(self.columns) >= self.sampling.max_tokens:
            self.finish_reason = "length"

    def recorded(self) -> conversation.Turn:
        """The completed call, as the conversation keeps it."""
        answer = {"role": "assistant", "content": self.text}
        return conversation.recorded(
            self.identifier, self.prompt, self.request.messages, self.columns, self.finish_reason, answer, self.tokenizer
        )

    def last_part(self) -> ChatCompleted:
        """Says how the answer ended; the whole answer, when it was not streamed."""
        return ChatCompleted(
            interaction=self.identifier,
            text="" if self.request.stream else self.text,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt.token_ids),
            completion_tokens=len(self.columns),
        )


def _within(context: int, prompt_tokens: int, sampling: SamplingParams) -> SamplingParams:
    room = context - prompt_tokens
    if room < 1:
        raise RequestError(f"the prompt has {prompt_tokens} tokens and the context {context}: shorten 'messages'", "messages")
    return msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room))


async def complete(call: Completion, pool: WorkerPool, turn: Turn, patience_seconds: float) -> AsyncIterator[ChatCompleted]:
    """Sample until the completion is whole; yields its parts while it is streamed.

    Raises:
        RequestError: an inference worker refused the request.
        EngineError: no worker could finish it.
    """
    seed = turn.random.getrandbits(48)
    while not call.finish_reason:
        with turn.waiting("an inference worker", patience_seconds):
            worker = await pool.choose(patience_seconds)
        try:
            async with pool.held(worker) as gone:
                answers = turn.stream(call.question(seed), timeout=patience_seconds, to=worker)
                async with aclosing(until_gone(answers, gone, worker)) as parts:
                    async for part in parts:
                        call.heard(part)
                        if call.request.stream and part.text:
                            yield ChatCompleted(interaction=call.identifier, text=part.text)
        except (WorkerLost, NoResponder):
            pool.lost(worker)
            call.interrupted()
        except BusError as error:
            raise EngineError(f"{worker} did not answer: {error}") from error
