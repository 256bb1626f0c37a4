"""The identity of a model call: digests that find retries, its sampling seed, and the record of its completion.

The same run seed gives the same run: no seed depends on a clock, on the order in which sessions open, or on the order
in which the calls of one session arrive. Different requests have different digests; equal requests are numbered, so
that their seeds differ.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from areal_actors.core.values import SamplingParams
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion import ModelCall
from areal_actors.gateway.completion_check import CompletionFault
from areal_actors.gateway.conversations.message_equality import digest
from areal_actors.gateway.conversations.turns import ConversationTurn
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import CompletionRefused, InteractionRecorded, ModelRequest
from areal_actors.runtime.actor import Context

SEED_BYTES = 6
"""Size that every engine accepts as a seed and JSON keeps exactly; choices of one call add their number to it."""


def name_of(request: ModelRequest) -> str:
    """The client's request id with a digest of the request, since some clients reuse one id; empty without an id."""
    if not request.request_id:
        return ""
    asked = msgspec.structs.replace(request, stream=False, body_bytes=0, ignored=(), trace=None)
    return f"{request.request_id} {digest(asked).hex()}"


def digest_of(request: ModelRequest) -> bytes:
    """Digest of a request without its id: equal when a client retries."""
    return digest(msgspec.structs.replace(request, stream=False, request_id="", body_bytes=0, ignored=(), trace=None))


def encode_sampling(sampling: SamplingParams) -> bytes:
    """The sampling parameters in the digest of a call, before its prompt (`PromptDigest.call`)."""
    if sampling.logit_bias:
        sampling = msgspec.structs.replace(sampling, logit_bias=dict(sorted(sampling.logit_bias.items())))
    return msgspec.json.encode(sampling)


def sampling_seed(run_seed: int, session: Session, digest: bytes) -> int:
    """The seed of the session's latest call with this digest."""
    parts = f"{run_seed}|{seed_label(session)}|{session.call_counts[digest]}|".encode() + digest
    return int.from_bytes(blake2b(parts, digest_size=SEED_BYTES).digest(), "big")


def seed_label(session: Session) -> str:
    """The session's part of its seeds.

    A later attempt at an episode has other seeds, so that it does not fail on the same sample; an attempt redelivered
    after the death of a worker has the same seeds. A held-out episode has its index among the tasks, whatever version
    is evaluated: the same weights have the same accuracy, and different weights are compared on the same random
    numbers.
    """
    work = session.work
    if work.purpose == "evaluate":
        return f"held-out {work.episode.rpartition('.')[2]} {work.attempt}"
    return session.label


def completion_refused(session: Session, error: CompletionFault) -> CompletionRefused:
    """The event of a completion that failed its check."""
    return CompletionRefused(
        worker=error.worker,
        session=session.id,
        episode=session.work.episode,
        interaction=f"{session.id}-{session.calls}",
        check=error.fault.check,
        cause=str(error.fault),
        purpose=session.work.purpose,
    )


def interaction_recorded(
    session: Session, choice: Choice, done: ConversationTurn, context: Context, call: ModelCall
) -> InteractionRecorded:
    """The record of a completed choice of a call."""
    interaction = done.interaction
    return InteractionRecorded(
        session=session.id,
        episode=session.work.episode,
        interaction=interaction.id,
        parent=interaction.parent,
        prefix=interaction.prefix,
        prefix_break_reason=choice.prompt.prefix_break_reason,
        prompt_tokens=choice.prompt.token_count,
        completion_tokens=len(interaction.completion),
        finish_reason=interaction.finish_reason,
        weight_version=interaction.completion.versions[-1].weight_version,
        tool_call_error=choice.whole.tool_call_error,
        ignored=choice.ignored,
        trained=interaction.trained,
        purpose=session.work.purpose,
        time=context.now,
        request=context.cause,
        attempt=session.work.attempt,
        continues=call.links.found,
        trace=call.request.trace,
    )
