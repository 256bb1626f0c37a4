"""Feedback on sessions of external agents, which comes at any time, and requests to erase sessions."""

from __future__ import annotations

from hashlib import blake2b
from typing import ClassVar, Literal

import msgspec

from areal_actors.messages.session import Refusal
from areal_bus.message import Event, Reply, Request

FeedbackKind = Literal["reward", "edit", "preference"]
"""`reward` is a number, `edit` an answer as it should have been, `preference` a call that was better than another."""


class FeedbackGiven(Event):
    """A user or a program has judged a session or one of its calls, before its end or long after it."""

    subject: ClassVar[str] = "feedback.given"
    id: str
    """Id by the client, or a digest of the content: the same feedback sent again has the same."""
    session: str
    """Session that is judged."""
    kind: FeedbackKind
    """Form of the judgement."""
    interaction: str = ""
    """Call that is judged; empty for the whole session."""
    reward: float | None = None
    """Number of a reward."""
    label: str = ""
    """Label that stands for the number, if one was sent."""
    text: str = ""
    """Answer of an edit."""
    worse: str = ""
    """Call of the session that a preferred one was better than."""
    name: str = ""
    """Name of the judgement, such as `helpful`; empty for the one that is the reward."""
    user: str = ""
    """Person or program that gave it."""
    comment: str = ""
    """Text beside it, for readers."""
    is_late: bool = False
    """True if the session had ended."""
    redacted: tuple[str, ...] = ()
    """Rules of `log.redaction` that have changed its texts; an edited answer with one is not learned from."""

    def place(self) -> tuple[str, str, str, str, str]:
        """Returns what identifies a judgement: a later one with the same place replaces it."""
        return (self.kind, self.interaction, self.worse, self.name, self.user)


class FeedbackRecorded(Reply):
    """The feedback is durable."""

    subject: ClassVar[str] = "feedback.recorded"
    id: str = ""
    """Id of the judgement."""
    state: Literal["recorded", "repeated", "replaced"] = "recorded"
    """`repeated` if this feedback was recorded before, `replaced` if it is in place of an earlier one of the user."""
    refused: Refusal | None = None
    """Refusal, if nothing was recorded."""


class GiveFeedback(Request[FeedbackRecorded]):
    """Record feedback on a session."""

    subject: ClassVar[str] = "feedback.give"
    reply: ClassVar[type[Reply]] = FeedbackRecorded
    feedback: FeedbackGiven
    """The judgement; its session may be empty where it names a call."""


class SessionsErased(Event):
    """Sessions that are never learned from, and whose feedback does not count, from here on."""

    subject: ClassVar[str] = "sessions.erased"
    sessions: tuple[str, ...]
    """Their names."""
    user: str = ""
    """Person who asked for it, or whose sessions they are."""
    reason: str = ""
    """Reason that was given."""


class ErasureRecorded(Reply):
    """The erasure is durable."""

    subject: ClassVar[str] = "erasure.recorded"
    sessions: tuple[str, ...] = ()
    """Sessions that were erased by this request or before it."""
    refused: Refusal | None = None
    """Refusal, if nothing was recorded."""


class EraseSessions(Request[ErasureRecorded]):
    """Erase a session, or all sessions of a user."""

    subject: ClassVar[str] = "sessions.erase"
    reply: ClassVar[type[Reply]] = ErasureRecorded
    session: str = ""
    """Session to erase; empty for those of a user."""
    user: str = ""
    """User whose sessions are erased."""
    reason: str = ""
    """Reason, for readers."""


def content_id(feedback: FeedbackGiven) -> str:
    """Returns the id of feedback whose client sends none: the same content has the same."""
    content = msgspec.msgpack.encode(msgspec.structs.replace(feedback, id="", is_late=False))
    return f"feedback-{blake2b(content, digest_size=16).hexdigest()}"
