"""One model call: its prompt from the conversation, its choices' tokens from inference workers, its answer in parts.

A worker that dies is replaced in mid-completion: the next one continues after the tokens that have already been handed
on, which keep their log-probabilities and versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import msgspec

from areal_actors.actor import Turn
from areal_actors.answer_formats.base import Tool
from areal_actors.conversations import turns as calls
from areal_actors.conversations.column_check import ColumnFault
from areal_actors.conversations.continuation import Continuations
from areal_actors.conversations.conversation import prompt_for, with_history
from areal_actors.conversations.prompt_length import PromptLimit
from areal_actors.conversations.turns import Prompt
from areal_actors.gateway.call_settings import callable_tools, constraint_of, refuse_images, sampling_of, within_context
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion_check import CompletionFault, PublishedVersions
from areal_actors.gateway.open_calls import CallInHand
from areal_actors.gateway.worker_pool import WorkerLost, WorkerPool, until_gone
from areal_actors.messages import CallModel, Generate, ModelAnswered
from areal_actors.text.tokenizer import ChatTokenizer
from areal_actors.values import SamplingParams
from bus.errors import AnswerLost, BusError, NoResponder


class Completion:
    """A model call under way."""

    def __init__(
        self,
        identifier: str,
        request: CallModel,
        turns: Sequence[calls.ConversationTurn],
        chat: ChatTokenizer,
        continuations: Continuations,
        *,
        default: SamplingParams,
        trained: bool,
        context: int,
        published: PublishedVersions,
        vocabulary: int = 0,
        answer_seconds: float = 600.0,
        in_hand: CallInHand,
    ) -> None:
        """Make the prompt; `published` and `vocabulary` are what completions are checked against.

        A worker may take `answer_seconds` for each part of its answer; `in_hand` is told what the call waits for.

        Raises:
            RequestError: a field is wrong or cannot be honoured.
        """
        self.identifier, self.request, self.chat, self.context = identifier, request, chat, context
        self.published, self.vocabulary, self.answer_seconds = published, vocabulary, answer_seconds
        self.in_hand = in_hand
        refuse_images(request.messages)
        known = {turn.interaction.id: turn for turn in turns}
        request = with_history(known, request)
        tools = callable_tools(request)
        field = "messages" if request.messages else "prompt"
        room = None if request.count_only else PromptLimit(context, field)
        self.prompt: Prompt = prompt_for(known, request, chat, continuations, room)
        sampling = sampling_of(request.sampling, default, trained=trained)
        if (constraint := constraint_of(request, tools, chat.format, in_reasoning=self.prompt.opens_reasoning)) is not None:
            sampling = msgspec.structs.replace(sampling, constraint=constraint)
        self.sampling = sampling if request.count_only else within_context(sampling, self.prompt_tokens, context, field)
        self.choices = [self._choice(number, tools) for number in range(request.choices)]

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt.token_ids) // 4

    def _choice(self, number: int, tools: Sequence[Tool]) -> Choice:
        identifier = f"{self.identifier}.{number}" if number else self.identifier
        return Choice(
            identifier,
            number,
            self.prompt,
            self.sampling,
            self.chat,
            tools,
            stream=self.request.stream,
            logprobs=self.request.logprobs,
            parallel_tool_calls=self.request.parallel_tool_calls,
            published=self.published,
            vocabulary=self.vocabulary,
        )

    def question(self, choice: Choice, seed: int) -> Generate:
        """What to ask an inference worker now."""
        stated = self.sampling.seed
        rest = msgspec.structs.replace(
            self.sampling,
            max_tokens=self.sampling.max_tokens - choice.sampled,
            seed=seed if stated is None else stated + choice.number,
        )
        prompt = self.prompt.token_ids
        return Generate(
            prompt_ids=prompt + choice.token_ids() if choice.sampled else prompt,
            sampled=choice.sampled,
            sampling=rest,
            stream=self.request.stream,
        )


async def complete(call: Completion, pool: WorkerPool, turn: Turn, patience_seconds: float, seed: int) -> AsyncIterator[ModelAnswered]:
    """Sample until all choices are whole; yields what streamed ones say meanwhile. `seed` holds where the request states none.

    Raises:
        RequestError: an inference worker refused the request.
        EngineError: no worker could finish it; a CompletionFault if one answered, but not soundly or not in time.
    """
    if len(call.choices) == 1:
        async for part in _sampled(call, call.choices[0], pool, turn, patience_seconds, seed):
            yield part
        return
    together = [_sampled(call, choice, pool, turn, patience_seconds, seed + choice.number) for choice in call.choices]
    async with aclosing(_merged(together)) as merged:
        async for part in merged:
            yield part


async def _sampled(
    call: Completion, choice: Choice, pool: WorkerPool, turn: Turn, patience_seconds: float, seed: int
) -> AsyncGenerator[ModelAnswered, None]:
    while not choice.finish_reason:
        if not pool.versions:
            call.in_hand.waits_for_a_worker()
        with turn.waiting("an inference worker", patience_seconds):
            worker = await pool.choose(patience_seconds)
        choice.check.begin()
        call.in_hand.asks(worker)
        try:
            async with pool.held(worker) as gone:
                answers = turn.stream(call.question(choice, seed), timeout=min(patience_seconds, call.answer_seconds), to=worker)
                async with aclosing(until_gone(answers, gone, worker)) as parts:
                    async for part in parts:
                        await choice.check.until_published(part, turn)
                        choice.heard(part, worker)
                        call.in_hand.sampled(len(part.columns), turn.now)
                        for said in choice.said(part) if call.request.stream else ():
                            yield said
        except (WorkerLost, NoResponder):
            pool.lost(worker)
            choice.interrupted()
        except AnswerLost:  # with a connection: the worker lives, and goes on from the tokens that arrived
            choice.interrupted()
        except CompletionFault as error:
            raise CompletionFault(error.fault, worker) from error
        except BusError as error:
            raise CompletionFault(ColumnFault(check="no answer", detail=f"{worker} did not answer: {error}"), worker) from error


async def _merged(sources: Sequence[AsyncGenerator[ModelAnswered, None]]) -> AsyncGenerator[ModelAnswered, None]:
    """What several choices say, in the order in which they say it; the first failure ends them all."""
    heard: asyncio.Queue[ModelAnswered | Exception | None] = asyncio.Queue()

    async def listen(source: AsyncGenerator[ModelAnswered, None]) -> None:
        try:
            async with aclosing(source):
                async for said in source:
                    heard.put_nowait(said)
        except Exception as error:  # noqa: BLE001 - handed to whoever reads the merged parts
            heard.put_nowait(error)
        heard.put_nowait(None)

    listening = [asyncio.create_task(listen(source)) for source in sources]
    try:
        open_sources = len(listening)
        while open_sources:
            said = await heard.get()
            if said is None:
                open_sources -= 1
            elif isinstance(said, Exception):
                raise said
            else:
                yield said
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
