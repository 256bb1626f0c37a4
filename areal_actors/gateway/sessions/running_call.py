"""Keeps a trace of a call that gets no answer: its client left, or its prompt no longer fits the context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from areal_actors.core.errors import PromptTooLong, RequestError
from areal_actors.gateway.sessions.model_texts import continues_model
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import ModelRequest
from areal_actors.runtime.actor import Context


@contextmanager
def running_call(registry: SessionRegistry, session: Session, context: Context) -> Iterator[Session]:
    """Begin a call, and end it with what runs within; a call that is cancelled was left by its client."""
    left = True
    try:
        yield registry.update(session.begin_call(context.now))
        left = False
    except Exception:
        left = False
        raise
    finally:
        if (now := registry.find(session.id)) is not None:
            registry.update(now.end_call(context.now, left=left))


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
