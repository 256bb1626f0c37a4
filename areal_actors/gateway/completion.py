"""One model call: its prompt and sampling parameters, its choices' tokens from inference workers, its answer in parts.

If a worker dies in mid-completion, another continues after the tokens already received, which keep their
log-probabilities and weight versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from areal_actors.core.column_check import ColumnFault
from areal_actors.core.errors import PromptTooLong, RequestError
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import HIGHEST_TEMPERATURE, SamplingParams
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion_check import CompletionFault, PublishedVersions
from areal_actors.gateway.constraint import constraint_of
from areal_actors.gateway.conversations.continuation import Continuations
from areal_actors.gateway.conversations.conversation import PromptLimit, prompt_for, with_history, with_references
from areal_actors.gateway.conversations.credit_links import find_credit_links
from areal_actors.gateway.conversations.prompt_digests import PromptDigest
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.conversations.turns import Prompt
from areal_actors.gateway.held_prefixes import LEAST_TOKENS, HeldPrefixes, SentPrompt
from areal_actors.gateway.image_intake import ImageIntake
from areal_actors.gateway.sessions.table import Session
from areal_actors.gateway.settings import TemperaturePolicy
from areal_actors.gateway.worker_pool import InFlightCall, WaitForParts, WorkerLost, WorkerPool
from areal_actors.messages import Generate, ModelRequest, ModelResponsePart
from areal_actors.runtime.actor import Context
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.tokenization.tool_parsers.base import ToolDefinition
from areal_actors.tokenization.tool_parsers.round_trip import UNTESTED, ToolSupport
from areal_bus.errors import AnswerLost, BusError, NoResponder

LEAST_TEMPERATURE = 0.1
"""Lowest temperature at which tokens are trained: the gradient, and the rounding of log-probabilities, grow with its
inverse."""


@dataclass
class ServedModel:
    """The model behind the gateway, and the limits of its calls."""

    continuations: Continuations
    published: PublishedVersions
    vocabulary: int
    """Number of token ids of the model."""
    max_model_len: int
    """Tokens of prompt and answer together."""
    answer_seconds: float
    """Time that a worker may take for each part of its answer."""
    temperature_policy: TemperaturePolicy | None
    """For trained calls with another temperature than the recipe's; None if none are trained."""
    tools: ToolSupport = UNTESTED
    """Result of the test of the model's answer format."""
    routes: RouteShape | None = None
    """Mixtures of experts of the model whose choices are recorded for training; None if none are."""

    @property
    def chat(self) -> ChatTokenizer:
        """Tokenizer, chat template and answer format."""
        return self.continuations.chat


class ModelCall:
    """A model call in flight."""

    def __init__(
        self, session: Session, turns: SessionTurns, request: ModelRequest, served: ServedModel, in_flight: InFlightCall
    ) -> None:
        """Make the prompt; `turns` are the session's, `in_flight` records what the call waits for.

        Raises:
            RequestError: a field is invalid or not supported.
        """
        self.identifier = f"{session.label}-{session.calls}"
        self.request, self.served, self.in_flight = request, served, in_flight
        self._issued_ids = turns.issued.keys()
        request = with_history(turns, with_references(turns, request))
        tools = callable_tools(request)
        self._withheld = withheld_tools(request)
        if tools and served.tools.error:
            raise RequestError(tools_refused(served.tools), "tools")
        field = "messages" if request.messages else "prompt"
        room = None if request.count_only else PromptLimit(served.max_model_len, field)
        self.prompt: Prompt = prompt_for(turns, request, served.continuations, room)
        self.digest: PromptDigest | None = None
        """Digests of the prompt; None if workers need not hold it."""
        self.links = find_credit_links(turns, self.prompt, request.client_session, request.messages)
        self._routes = served.routes if session.work.purpose == "train" else None
        default = session.work.sampling
        sampling = sampling_of(request.sampling, default)
        self.temperature: float | None = None
        """Temperature at which the tokens are trained, if it is not the recipe's."""
        self.ignored = request.ignored
        """Fields, tools and headers of the request without effect."""
        is_trained = served.temperature_policy is not None and session.work.purpose == "train"
        self.stated_seed: int | None = None if is_trained else sampling.seed
        """The client's seed, where it holds. Members of a group with one seed would be equal: in training it is part of
        the derived one."""
        if is_trained and "seed" in request.sampling:
            self.ignored = (*self.ignored, "seed")
        if is_trained and served.temperature_policy and sampling.temperature != default.temperature:
            if served.temperature_policy == "recipe":
                sampling, self.ignored = (
                    msgspec.structs.replace(sampling, temperature=default.temperature),
                    (*self.ignored, "temperature"),
                )
            else:
                self.temperature = trainable_temperature(
                    sampling.temperature, default.temperature, served.temperature_policy
                )
        if (
            constraint := constraint_of(request, tools, served.chat.format, in_reasoning=self.prompt.opens_reasoning)
        ) is not None:
            sampling = msgspec.structs.replace(sampling, constraint=constraint)
        self.sampling = (
            sampling
            if request.count_only
            else within_context(sampling, self.prompt_tokens, served.max_model_len, field)
        )
        self.choices = [self._choice(number, tools) for number in range(request.choices)]

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.prompt.token_count

    def _choice(self, number: int, tools: Sequence[ToolDefinition]) -> Choice:
        identifier = f"{self.identifier}.{number}" if number else self.identifier
        return Choice(
            identifier,
            number,
            self.prompt,
            self.sampling,
            self.served.chat,
            tools,
            stream=self.request.stream,
            logprobs=self.request.logprobs,
            parallel_tool_calls=self.request.parallel_tool_calls,
            withheld=self._withheld,
            issued_ids=self._issued_ids,
            published=self.served.published,
            vocabulary=self.served.vocabulary,
            temperature=self.temperature,
            ignored=self.ignored,
            routes=self._routes,
        )

    def is_held(self) -> bool:
        """True if workers hold the prompt, so that later calls leave it out."""
        return self.digest is not None and self.prompt.token_count >= LEAST_TOKENS

    def sent_prompt(self, choice: Choice, held: HeldPrefixes, worker: str) -> SentPrompt:
        """The prompt and what is sampled of a choice, as they are sent to a worker that holds these prefixes."""
        prompt, sampled = self.prompt, choice.token_ids() if choice.sampled else b""
        if self.digest is None or not self.is_held():
            return SentPrompt(prompt.token_ids + sampled)
        digest = self.digest.tokens.extended(sampled).value() if sampled else self.digest.tokens.value()
        if not choice.is_sent_whole:
            if held.is_held(digest, worker):
                return SentPrompt(b"", digest, prompt.token_count + choice.sampled, digest)
            if held.is_held(self.digest.prefix, worker):
                return SentPrompt(prompt.suffix_ids + sampled, self.digest.prefix, prompt.cached_tokens, digest)
        if not prompt.prefix:
            held.note(digest, worker)  # siblings send the same prompt
        return SentPrompt(prompt.token_ids + sampled, digest=digest)

    def next_request(self, choice: Choice, seed: int, sent: SentPrompt) -> Generate:
        """The request for the rest of a choice."""
        stated = self.stated_seed
        rest = msgspec.structs.replace(
            self.sampling,
            max_tokens=self.sampling.max_tokens - choice.sampled,
            seed=seed if stated is None else stated + choice.number,
        )
        return Generate(
            prompt_ids=sent.prompt_ids,
            resumed_tokens=choice.sampled,
            sampling=rest,
            stream=self.request.stream,
            routes_from=choice.routes_from(),
            images=self.prompt.images,
            prefix=sent.prefix,
            prefix_tokens=sent.prefix_tokens,
            digest=sent.digest,
        )


def sampling_of(options: Mapping[str, Any], default: SamplingParams) -> SamplingParams:
    """The request's sampling parameters, with the session's defaults for those it leaves out.

    Raises:
        RequestError: a value is of the wrong type or out of range.
    """
    if not options:
        return default
    try:
        asked = msgspec.convert(options, SamplingParams)
    except msgspec.ValidationError as error:
        complaint, _, at = str(error).partition(" - at `$.")
        field = at.rstrip("`").partition("[")[0]
        raise RequestError(f"'{field}': {complaint[0].lower()}{complaint[1:]}", field) from None
    sampling = msgspec.structs.replace(default, **{name: getattr(asked, name) for name in options})
    if not 0 < sampling.top_p <= 1:
        raise RequestError(f"'top_p' is {sampling.top_p:g}; expected a number above 0, at most 1", "top_p")
    return sampling


def trainable_temperature(asked: float, default: float, policy: TemperaturePolicy) -> float:
    """Returns the temperature that a client asked for, if its tokens can be trained at it.

    Raises:
        RequestError: the policy is `error`, or the temperature is too low or too high.
    """
    if policy == "as_asked" and LEAST_TEMPERATURE <= asked <= HIGHEST_TEMPERATURE:
        return asked
    if policy == "as_asked":
        limits = f"{LEAST_TEMPERATURE:g} to {HIGHEST_TEMPERATURE:g}"
        problem = f"tokens are trained at {limits}: leave it out, or set gateway.temperature_policy='recipe'"
    else:
        problem = (
            f"this run trains at {default:g}: leave it out, or set gateway.temperature_policy='as_asked' (or 'recipe')"
        )
    raise RequestError(f"'temperature' is {asked:g}, but {problem} in the recipe", "temperature")


def callable_tools(request: ModelRequest) -> Sequence[ToolDefinition]:
    """The tools that the model may call in this answer.

    Raises:
        RequestError: it must call a tool that is not declared.
    """
    if request.tool_choice == "none":
        return ()
    if request.tool_choice == "required" and not request.tools:
        raise RequestError("'tool_choice' is required, but there are no tools; send 'tools'", "tool_choice")
    if not request.tool_choice.startswith("function:"):
        allowed = request.allowed_tools
        return [tool for tool in request.tools if tool["function"]["name"] in allowed] if allowed else request.tools
    name = request.tool_choice.removeprefix("function:")
    named = [tool for tool in request.tools if tool["function"]["name"] == name]
    if not named:
        names = ", ".join(tool["function"]["name"] for tool in request.tools) or "none"
        raise RequestError(
            f"'tool_choice' names the function '{name}', which is not in 'tools' ({names})", "tool_choice"
        )
    return named


def withheld_tools(request: ModelRequest) -> frozenset[str]:
    """Names of tools in the prompt that `allowed_tools` leaves out: a call of one is text."""
    allowed = request.allowed_tools
    return (
        frozenset(name for tool in request.tools if (name := tool["function"]["name"]) not in allowed)
        if allowed
        else frozenset()
    )


def tools_refused(support: ToolSupport) -> str:
    """Return the error for a request with tools to a model whose tool calls cannot be read."""
    return (
        f"'tools' cannot be used with this model's chat template: {support.error}; leave them out, or set"
        " gateway.chat_template to a template that renders tool calls, or gateway.tool_format to the format that the"
        " model writes"
    )


async def with_images_stored(request: ModelRequest, images: ImageIntake, served: ServedModel | None) -> ModelRequest:
    """The request with its images by reference: text alone is a string, and images are parts of a list.

    Raises:
        RequestError: the model has no vision, or an image is refused.
        EngineError: an image cannot be written.
    """
    if (
        served is None
        or request.plain_text
        or list not in [type(message.get("content")) for message in request.messages]
    ):
        return request
    return await images.store(request, served.continuations.vision)


def within_context(
    sampling: SamplingParams, prompt_tokens: int, context: int, field: str = "messages"
) -> SamplingParams:
    """The sampling parameters, with `max_tokens` capped by the rest of the context.

    Raises:
        PromptTooLong: the prompt leaves no room.
    """
    room = context - prompt_tokens
    if room < 1:
        raise PromptTooLong(prompt_tokens, context, field)
    return sampling if sampling.max_tokens <= room else msgspec.structs.replace(sampling, max_tokens=room)


def complete(
    call: ModelCall, pool: WorkerPool, context: Context, patience_seconds: float, seed: int
) -> AsyncGenerator[ModelResponsePart, None]:
    """Sample until all choices are complete; yields the parts of streamed ones.

    `seed` is used if the request's does not hold.

    Raises:
        RequestError: an inference worker refused the request.
        EngineError: no worker could finish it; a CompletionFault if a worker's answer was invalid or late.
    """
    if len(call.choices) == 1:
        return _sample(call, call.choices[0], pool, context, patience_seconds, seed)
    return _merge(
        [_sample(call, choice, pool, context, patience_seconds, seed + choice.number) for choice in call.choices]
    )


async def _sample(
    call: ModelCall, choice: Choice, pool: WorkerPool, context: Context, patience_seconds: float, seed: int
) -> AsyncGenerator[ModelResponsePart, None]:
    deadline, session = min(patience_seconds, call.served.answer_seconds), call.request.session
    while not choice.finish_reason:
        worker = pool.find_free(session) or await _wait_for_worker(call, pool, context, patience_seconds)
        choice.check.reset_version()
        call.in_flight.assign(worker)
        sent = call.sent_prompt(choice, pool.held, worker)
        try:
            with pool.count_call(worker, session) as gone, WaitForParts(gone, worker) as wait:
                answers = context.stream(call.next_request(choice, seed, sent), timeout=deadline, to=worker)
                try:
                    while (part := await wait.next_of(answers)) is not None:
                        if part.prefix_problem and sent.prefix:
                            pool.held.drop(sent, part.prefix_problem)
                            choice.is_sent_whole = True
                            break
                        await choice.check.until_published(part, context)
                        choice.add_tokens(part, worker)
                        call.in_flight.add_tokens(len(part.columns), context.now)
                        for delta in choice.emit(part) if call.request.stream else ():
                            yield delta
                finally:
                    await answers.aclose()
        except (WorkerLost, NoResponder):
            pool.remove_lost(worker)
            choice.on_worker_lost()
        except AnswerLost:  # the connection broke: the worker lives, and continues after the tokens that arrived
            choice.on_worker_lost()
        except CompletionFault as error:
            pool.forget(session)
            raise CompletionFault(error.fault, worker) from error
        except BusError as error:
            pool.forget(session)
            raise CompletionFault(
                ColumnFault(check="no answer", detail=f"{worker} did not answer: {error}"), worker
            ) from error


async def _wait_for_worker(call: ModelCall, pool: WorkerPool, context: Context, patience_seconds: float) -> str:
    if not pool.versions:
        call.in_flight.wait_for_worker()
    with context.waiting("an inference worker", patience_seconds):
        return await pool.choose(patience_seconds, call.request.session)


async def _merge(sources: Sequence[AsyncGenerator[ModelResponsePart, None]]) -> AsyncGenerator[ModelResponsePart, None]:
    """Parts of several choices in order of arrival; the first failure ends them all."""
    parts: asyncio.Queue[ModelResponsePart | Exception | None] = asyncio.Queue()

    async def forward(source: AsyncGenerator[ModelResponsePart, None]) -> None:
        try:
            async with aclosing(source):
                async for part in source:
                    parts.put_nowait(part)
        except Exception as error:  # noqa: BLE001 - raised where the merged parts are read
            parts.put_nowait(error)
        parts.put_nowait(None)

    tasks = [asyncio.create_task(forward(source)) for source in sources]
    try:
        open_sources = len(tasks)
        while open_sources:
            part = await parts.get()
            if part is None:
                open_sources -= 1
            elif isinstance(part, Exception):
                raise part
            else:
                yield part
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
