"""The model calls of all sessions of a gateway.

Each is answered by an inference worker, and recorded whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from areal_actors.core.errors import ArealError, EngineError, RequestError, SessionError, SetupError
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion import ModelCall, ServedModel, complete, with_images_stored
from areal_actors.gateway.completion_check import CompletionFault
from areal_actors.gateway.conversations.prompt_digests import PromptDigests, is_digest_kept
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.conversations.turns import ConversationTurn
from areal_actors.gateway.image_intake import ImageIntake
from areal_actors.gateway.long_work import LONG_BYTES, LongWork
from areal_actors.gateway.sessions.calls import (
    completion_refused,
    digest_of,
    encode_sampling,
    interaction_recorded,
    name_of,
    sampling_seed,
)
from areal_actors.gateway.sessions.episode_end import UnreportedCalls
from areal_actors.gateway.sessions.registry import Recent, SessionRegistry
from areal_actors.gateway.sessions.running_call import RunningCall, keep_overflow
from areal_actors.gateway.sessions.table import Session
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.gateway.worker_pool import InFlightCall, InFlightCalls, NamedCalls, TakenName, WorkerPool
from areal_actors.messages import CompletionRefused, ModelRequest, ModelResponsePart
from areal_actors.runtime.actor import Context
from areal_actors.tokenization.tokenizer import ChatTokenizer

NO_TURN: Final[AbstractContextManager[None]] = nullcontext()
"""Turn of a call without a name, which waits for no other."""
REMEMBERED_TURNS = 256
"""Number of sessions whose calls are kept as `SessionTurns`; for others they are read again."""
SearchCall = Callable[[Session, ConversationTurn, ChatTokenizer], Session]
"""Returns the session of a completed call with what was found in that call."""


class ModelCalls:
    """Answers calls and records them in their sessions."""

    def __init__(self, config: GatewaySettings, registry: SessionRegistry, images: ImageIntake, *, seed: int) -> None:
        self.config, self.registry, self.images, self.seed = config, registry, images, seed
        self.pool = WorkerPool()
        self.open_calls = InFlightCalls()
        self.unreported = UnreportedCalls()
        self.digests = PromptDigests()
        self._turns: Recent[str, SessionTurns] = Recent(REMEMBERED_TURNS)
        """Completed calls by session, of the sessions that called last."""
        self.in_progress = NamedCalls()
        self.refused: Counter[str] = Counter()
        """Completions refused since this gateway started, by worker."""
        self.served: ServedModel | None = None
        """None until weights are published."""
        self.long_work = LongWork(2, "long-requests")
        self.screen: SearchCall | None = None
        """Notes matches of the rules of `log.redaction` in a completed call; None without rules."""

    @property
    def chat(self) -> ChatTokenizer | None:
        """Tokenizer of the served model; None while there is none."""
        return self.served.continuations.chat if self.served is not None else None

    async def take_turn(self, request: ModelRequest, name: str, context: Context) -> TakenName:
        """Wait while a call of this name, an earlier try of the same client, is in progress."""
        seconds = self.registry.get(request.session).lease_seconds
        return await self.in_progress.take(request.session, name, context, seconds)

    def refuse(self, request: ModelRequest, error: ArealError) -> ModelResponsePart:
        """Returns the answer to a call that failed with this error."""
        if isinstance(error, RequestError):
            keep_overflow(self.registry, request, error)
            return ModelResponsePart(error=str(error), error_status=400, error_field=error.field, error_code=error.code)
        return ModelResponsePart(error=str(error), error_status=410 if isinstance(error, SessionError) else 503)

    def record_failure(
        self, session: Session, request: ModelRequest, error: EngineError
    ) -> Iterator[CompletionRefused]:
        """Record the unanswered request, and report the worker that failed."""
        if (now := self.registry.find(session.id)) is not None:
            self.registry.update(now.engine_failed(digest_of(request), str(error)))
        if isinstance(error, CompletionFault):
            self.refused[error.worker] += 1
            yield completion_refused(session, error)

    async def answer(
        self, request: ModelRequest, context: Context
    ) -> AsyncGenerator[ModelResponsePart | CompletionRefused, None]:
        """Stream the answer, record all choices as interactions or none, and only then yield the last parts."""
        try:
            request = request if request.plain_text else await with_images_stored(request, self.images, self.served)
            name = name_of(request)
            with (
                self.open_calls.track(request.session, context.now) as in_flight,
                await self.take_turn(request, name, context) if name else NO_TURN,
            ):
                session = self.registry.get(request.session)
                if name and (again := session.answered.get(name)):
                    for part in again:
                        yield part
                    return
                with RunningCall(self.registry, session, context) as session:
                    try:
                        call = await self._begin(session, request, in_flight)
                        if request.count_only:
                            yield ModelResponsePart(prompt_tokens=call.prompt_tokens, last=True)
                            return
                        parts = self._sample(call, context)
                        try:
                            try:
                                async for part in parts:
                                    yield part
                            finally:
                                await parts.aclose()
                        except (asyncio.CancelledError, GeneratorExit):
                            self._keep_cancelled(session.id, call, context)
                            raise
                        for part in self._record_call(session.id, call, name, context):
                            yield part
                    except EngineError as error:
                        for refused in self.record_failure(session, request, error):
                            yield refused
                        raise
        except (RequestError, SessionError, EngineError, SetupError) as error:
            yield self.refuse(request, error)

    async def _begin(self, session: Session, request: ModelRequest, in_flight: InFlightCall) -> ModelCall:
        """Make the prompt, beside the event loop if it is long."""
        if self.served is None:
            raise EngineError("the gateway has no tokenizer yet: no weights have been published")
        turns = SessionTurns.of(session.turns, self._turns.get(session.id))
        self._turns[session.id] = turns
        if request.body_bytes < LONG_BYTES:
            return ModelCall(session, turns, request, self.served, in_flight)
        return await self.long_work.run(request.body_bytes, ModelCall, session, turns, request, self.served, in_flight)

    def forget_ended(self) -> None:
        """Forget the calls of sessions that have ended: their tokens take memory."""
        for session in [session for session in self._turns if self.registry.find(session) is None]:
            del self._turns[session]

    def _sample(self, call: ModelCall, context: Context) -> AsyncGenerator[ModelResponsePart, None]:
        """Count the call, and sample its choices."""
        session_id = call.request.session
        call.digest = self.digests.of_prompt(session_id, call.prompt, encode_sampling(call.sampling))
        digest = call.digest.call.value()
        session = self.registry.update(self.registry.get(session_id).count_call(digest))
        seed = sampling_seed(self.seed, session, digest)
        return complete(call, self.pool, context, session.lease_seconds, seed)

    def _is_trained(self, request: ModelRequest) -> bool:
        return request.store or self.config.store_false == "train"

    def _record_call(
        self, session_id: str, call: ModelCall, name: str, context: Context
    ) -> Iterator[ModelResponsePart]:
        """Record a completed call; yields the last parts of its answer."""
        trained = self._is_trained(call.request)
        last, role = call.choices[-1], call.links.role
        ended = [choice.finish(last=choice is last, trained=trained, role=role) for choice in call.choices]
        session = self.registry.get(session_id)
        for _, done in ended:
            session = self._record(session, call, done, context.now)
        if session.unanswered:
            session = session.engine_answered(digest_of(call.request))
        self.registry.update(session.with_answer(name, [choice.whole for choice in call.choices]) if name else session)
        for choice, (_, done) in zip(call.choices, ended, strict=True):
            self._remember_end(session_id, call, choice)
            self.unreported.add(interaction_recorded(session, choice, done, context, call))
        for parts, _ in ended:
            yield from parts

    def _remember_end(self, session_id: str, call: ModelCall, choice: Choice) -> None:
        """Remember the digests of a completed choice, and the worker that holds its tokens."""
        if call.digest is None or not call.is_held():
            return
        ids = choice.token_ids()
        if is_digest_kept(call.prompt):
            end = call.digest.extended(ids)
            self.digests.record(session_id, choice.identifier, call.prompt, end)
            tokens = end.tokens
        else:
            tokens = call.digest.tokens.extended(ids)
        self.pool.held.note(tokens.value(), choice.last_worker)

    def _record(self, session: Session, call: ModelCall, done: ConversationTurn, now: float) -> Session:
        """Returns the session with a call, and with the matches in it of rules that forbid to keep it."""
        session = session.record(done, now, call.request.client_session, call.links)
        if self.screen is None or self.chat is None:
            return session
        return self.screen(session, done, self.chat)

    def _keep_cancelled(self, name: str, call: ModelCall, context: Context) -> None:
        """Record the streamed part of a cancelled call: the next call of the conversation may continue it."""
        trained = self._is_trained(call.request)
        for choice in call.choices if call.request.stream else ():
            if choice.sampled and (session := self.registry.find(name)) is not None and session.state == "active":
                done = choice.finish_cancelled(trained=trained)
                session = self.registry.update(self._record(session, call, done, context.now))
                self.unreported.add(interaction_recorded(session, choice, done, context, call))
