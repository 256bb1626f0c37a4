"""Digests of model calls for deduplication, and the event of a completed call."""

from __future__ import annotations

import msgspec

from areal_actors.gateway.conversations.message_equality import digest
from areal_actors.gateway.conversations.turns import ConversationTurn, Prompt
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import InteractionRecorded, ModelRequest


def name_of(request: ModelRequest) -> str:
    """The client's request id with a digest of the request, since some clients reuse one id; empty without an id."""
    if not request.request_id:
        return ""
    return f"{request.request_id} {digest(msgspec.structs.replace(request, stream=False, body_bytes=0)).hex()}"


def digest_of(request: ModelRequest) -> bytes:
    """Digest of a request without its id: equal when a client retries."""
    return digest(msgspec.structs.replace(request, stream=False, request_id="", body_bytes=0))


def interaction_recorded(session: Session, prompt: Prompt, done: ConversationTurn, problem: str) -> InteractionRecorded:
    """The event of a completed call."""
    made = done.interaction
    return InteractionRecorded(
        session=session.id,
        episode=session.work.episode,
        interaction=made.id,
        parent=made.parent,
        prefix=made.prefix,
        split=prompt.split,
        prompt_tokens=len(prompt.token_ids) // 4,
        completion_tokens=len(made.completion),
        finish_reason=made.finish_reason,
        weight_version=made.completion.versions[-1].weight_version,
        problem=problem,
        trained=made.trained,
        purpose=session.work.purpose,
    )
