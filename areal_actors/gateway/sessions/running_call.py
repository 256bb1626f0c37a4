"""Keeps a trace of a call that gets no answer: its client left, or its prompt no longer fits the context."""

from __future__ import annotations

from areal_actors.core.errors import PromptTooLong, RequestError
from areal_actors.gateway.sessions.model_texts import continues_model
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import ModelRequest
from areal_actors.runtime.actor import Context


class RunningCall:
    """Begins a call, and ends it with what runs within; a call that is cancelled was left by its client."""

    __slots__ = ("_context", "_registry", "_session")

    def __init__(self, registry: SessionRegistry, session: Session, context: Context) -> None:
        self._registry, self._session, self._context = registry, session, context

    def __enter__(self) -> Session:
        return self._registry.update(self._session.begin_call(self._context.now))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if (now := self._registry.find(self._session.id)) is not None:
            left = kind is not None and not issubclass(kind, Exception)
            self._registry.update(now.end_call(self._context.now, left=left))


def keep_overflow(registry: SessionRegistry, request: ModelRequest, error: RequestError) -> None:
    """Record a prompt that no longer fits the context, if it holds what the model wrote."""
    session = registry.find(request.session)
    if (
        session is not None
        and isinstance(error, PromptTooLong)
        and not request.count_only
        and continues_model(session.turns, request)
    ):
        registry.update(session.refuse_overflow(str(error)))
