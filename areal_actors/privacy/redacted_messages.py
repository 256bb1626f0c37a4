"""Messages of sessions and of feedback under the rules of `[log.redaction]`, before anything has them.

Texts of people are redacted, names of users and of conversations have pseudonyms. The name of a task, which is that
of its sessions, is refused. An edited answer that a rule changes is in the log, and is not learned from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec

from areal_actors.messages import (
    ClientTrace,
    CompletionRefused,
    EpisodeAbandoned,
    EraseSessions,
    FeedbackGiven,
    GiveFeedback,
    InteractionRecorded,
    InteractionsRecorded,
    ModelRequest,
    Refusal,
    SessionCreated,
    SetReward,
    StartSession,
    TrajectoryExported,
)
from areal_actors.privacy.redaction import Redaction
from areal_actors.runtime.actor import Context
from areal_bus.message import Message

M = TypeVar("M", bound=Message)
Receive = Callable[[Message, Context], AsyncGenerator[Message, None]]


async def receive_redacted(
    redaction: Redaction, receive: Receive, message: Message, context: Context
) -> AsyncGenerator[Message, None]:
    """Have an actor receive a message as it may be written; yields what it emits in the same way."""
    if isinstance(message, StartSession) and (refused := refuse_task(redaction, message)):
        yield SessionCreated(refused=refused)
        return
    async with aclosing(receive(redact_request(redaction, message), context)) as emitted:
        async for sent in emitted:
            yield redact_event(redaction, sent)


def refuse_task(redaction: Redaction, request: StartSession) -> Refusal | None:
    """Returns the refusal of a session whose task's name a rule matches, since the log has it in every event."""
    if not (rules := redaction.names_in(request.task)):
        return None
    reason = f"'task_id' has a match of log.redaction ({', '.join(rules)}); name the task without it"
    return Refusal(status=400, reason=reason, field="task_id")


def redact_request(redaction: Redaction, message: M) -> M:
    """Returns a request without what a rule matches in its texts and names."""
    replace, rename, redact = msgspec.structs.replace, redaction.rename, redaction.redact
    match message:
        case StartSession():
            return replace(message, user=rename(message.user))
        case EraseSessions():
            return replace(message, user=rename(message.user), reason=redact(message.reason))
        case ModelRequest() if message.client_session or message.trace:
            trace = message.trace and redact_trace(redaction, message.trace)
            return replace(message, client_session=rename(message.client_session), trace=trace)
        case SetReward() if message.role or message.spans:
            spans = tuple(replace(span, name=rename(span.name)) for span in message.spans)
            return replace(message, role=rename(message.role), spans=spans)
        case GiveFeedback():
            return replace(message, feedback=redact_feedback(redaction, message.feedback))
    return message


def redact_trace(redaction: Redaction, trace: ClientTrace) -> ClientTrace:
    """Returns the trace of a call without a state that a rule matches, and with pseudonyms in its baggage."""
    state = "" if redaction.find(trace.state) else trace.state
    baggage = {name: redaction.rename(value) for name, value in trace.baggage.items()}
    return msgspec.structs.replace(trace, state=state, baggage=baggage)


def redact_feedback(redaction: Redaction, given: FeedbackGiven) -> FeedbackGiven:
    """Returns feedback as it is recorded; `redacted` names the rules that match in its texts."""
    texts = (given.text, given.comment)
    rules = dict.fromkeys(rule for text in texts for rule in redaction.names_in(text))
    return msgspec.structs.replace(
        given,
        id=redaction.rename(given.id),
        user=redaction.rename(given.user),
        name=redaction.rename(given.name),
        text=redaction.redact(given.text),
        comment=redaction.redact(given.comment),
        redacted=tuple(rules),
    )


def redact_event(redaction: Redaction, message: M) -> M:
    """Returns what a gateway sends without what a rule matches in the texts of its failures."""
    replace, redact = msgspec.structs.replace, redaction.redact
    match message:
        case EpisodeAbandoned():
            return replace(message, detail=redact(message.detail))
        case CompletionRefused():
            return replace(message, cause=redact(message.cause))
        case InteractionsRecorded() | TrajectoryExported() if message.recorded:
            return replace(message, recorded=tuple(_redact_call(redaction, call) for call in message.recorded))
    return message


def _redact_call(redaction: Redaction, call: InteractionRecorded) -> InteractionRecorded:
    if not call.tool_call_error and not call.ignored:
        return call
    return msgspec.structs.replace(
        call,
        tool_call_error=redaction.redact(call.tool_call_error),
        ignored=tuple(map(redaction.redact, call.ignored)),
    )
