"""The model calls of all sessions of a gateway.

Each is answered by an inference worker, and recorded whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext

from areal_actors.core.errors import ArealError, EngineError, RequestError, SessionError
from areal_actors.gateway.completion import ModelCall, ServedModel, complete
from areal_actors.gateway.completion_check import CompletionFault
from areal_actors.gateway.conversations.turns import ConversationTurn
from areal_actors.gateway.server import LongWork
from areal_actors.gateway.sessions.calls import (
    call_digest,
    completion_refused,
    digest_of,
    interaction_recorded,
    sampling_seed,
)
from areal_actors.gateway.sessions.episode_end import UnreportedCalls
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.gateway.sessions.running_call import keep_overflow
from areal_actors.gateway.sessions.table import Session
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.gateway.worker_pool import InFlightCall, InFlightCalls, NamedCalls, WorkerPool
from areal_actors.messages import CompletionRefused, ModelRequest, ModelResponsePart
from areal_actors.runtime.actor import Context
from areal_actors.tokenization.tokenizer import ChatTokenizer

SearchCall = Callable[[Session, ConversationTurn, ChatTokenizer], Session]
"""Returns the session of a completed call with what was found in that call."""


class ModelCalls:
    """Answers calls and records them in their sessions."""

    def __init__(self, config: GatewaySettings, registry: SessionRegistry, *, seed: int) -> None:
        self.config, self.registry, self.seed = config, registry, seed
        self.pool = WorkerPool()
        self.open_calls = InFlightCalls()
        self.unreported = UnreportedCalls()
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

    def take_turn(self, request: ModelRequest, name: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Wait while a call of this name, an earlier try of the same client, is in progress.

        A call without a name waits for none.
        """
        if not name:
            return nullcontext()
        return self.in_progress.alone(request.session, name, context, self.registry.get(request.session).lease_seconds)

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
        self, session: Session, request: ModelRequest, name: str, context: Context, in_flight: InFlightCall
    ) -> AsyncIterator[ModelResponsePart]:
        """Stream the answer, record all choices as interactions or none, and only then yield the last parts."""
        if self.served is None:
            raise EngineError("the gateway has no tokenizer yet: no weights have been published")
        call = await self.long_work.run(request.body_bytes, ModelCall, session, request, self.served, in_flight)
        if request.count_only:
            yield ModelResponsePart(prompt_tokens=call.prompt_tokens, last=True)
            return
        digest = call_digest(call.prompt.token_ids, call.sampling)
        session = self.registry.update(self.registry.get(request.session).count_call(digest))
        trained = request.store or self.config.store_false == "train"
        try:
            async for part in complete(
                call, self.pool, context, session.lease_seconds, sampling_seed(self.seed, session, digest)
            ):
                yield part
        except (asyncio.CancelledError, GeneratorExit):
            if request.stream:
                self._keep_cancelled(session.id, call, context, trained=trained)
            raise
        for answer in self._record_call(session.id, call, name, context, trained=trained):
            yield answer

    def _record_call(
        self, session_id: str, call: ModelCall, name: str, context: Context, *, trained: bool
    ) -> Iterator[ModelResponsePart]:
        """Record a completed call; yields the last parts of its answer."""
        ended = [choice.finish(last=choice is call.choices[-1], trained=trained) for choice in call.choices]
        session = self.registry.get(session_id)
        for _, done in ended:
            session = self._record(session, call, done, context.now)
        if session.unanswered:
            session = session.engine_answered(digest_of(call.request))
        self.registry.update(session.with_answer(name, [choice.whole for choice in call.choices]) if name else session)
        for choice, (_, done) in zip(call.choices, ended, strict=True):
            self.unreported.add(interaction_recorded(session, choice, done, context, call))
        for parts, _ in ended:
            yield from parts

    def _record(self, session: Session, call: ModelCall, done: ConversationTurn, now: float) -> Session:
        """Returns the session with a call, and with the matches in it of rules that forbid to keep it."""
        session = session.record(done, now, call.request.client_session, call.links)
        if self.screen is None or self.chat is None:
            return session
        return self.screen(session, done, self.chat)

    def _keep_cancelled(self, name: str, call: ModelCall, context: Context, *, trained: bool) -> None:
        """Record the streamed part of a cancelled call: the next call of the conversation may continue it."""
        for choice in call.choices:
            if choice.sampled and (session := self.registry.find(name)) is not None and session.state == "active":
                done = choice.finish_cancelled(trained=trained)
                session = self.registry.update(self._record(session, call, done, context.now))
                self.unreported.add(interaction_recorded(session, choice, done, context, call))
