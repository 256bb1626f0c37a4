"""Bodies of feedback and of erasures as clients send them, in this project's form and in that of Langfuse's scores."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.feedback_settings import FeedbackSettings
from areal_actors.core.scalars import HIGHEST_REWARD
from areal_actors.gateway.protocols.fields import RequestStruct
from areal_actors.gateway.protocols.session_requests import Name, SessionId
from areal_actors.messages import EraseSessions, FeedbackGiven

Reward = Annotated[float, msgspec.Meta(ge=-HIGHEST_REWARD, le=HIGHEST_REWARD)]
ShortText = Annotated[str, msgspec.Meta(max_length=256)]
LongText = Annotated[str, msgspec.Meta(max_length=1 << 20)]
ONE_OF = "send exactly one of 'reward', 'label', 'edit' and 'preferred_over'"
TRUE_OR_FALSE = {"true": 1.0, "false": 0.0}


class FeedbackRequest(RequestStruct):
    """`POST /rl/feedback`."""

    session_id: SessionId | None = None
    """Session that is judged; may be left out where `interaction_id` is given, or the key is the session's own."""
    interaction_id: Name | None = None
    """Call that is judged, the `id` of its response; without it the whole session is."""
    reward: Reward | bool | None = None
    label: ShortText | None = None
    """A word in place of a number: one of `gateway.feedback.labels`."""
    edit: LongText | None = None
    """The answer as it should have been."""
    preferred_over: Name | None = None
    """Call of the same session that `interaction_id` was better than."""
    name: ShortText | None = None
    """Name of the judgement; without one, or with `gateway.feedback.reward_name`, it is the reward."""
    user: ShortText | None = None
    """Person or program that gives it."""
    id: ShortText | None = None
    """Id of the judgement, so that it can be sent again safely, whatever was sent in between."""
    comment: LongText | None = None

    def to_feedback(self, settings: FeedbackSettings) -> FeedbackGiven:
        """Returns the feedback.

        Raises:
            RequestError: it has none or several judgements, or an unknown label; names the field.
        """
        stated = [field for field in ("reward", "label", "edit", "preferred_over") if getattr(self, field) is not None]
        if len(stated) != 1:
            raise RequestError(f"{ONE_OF}; found {' and '.join(stated) or 'none'}", stated[1] if stated else "reward")
        if stated[0] in {"edit", "preferred_over"} and not self.interaction_id:
            raise RequestError(f"'{stated[0]}' is about a call; send its 'interaction_id'", "interaction_id")
        reward = reward_of_label(self.label, settings) if self.label is not None else self.reward
        return FeedbackGiven(
            id=self.id or "",
            session=self.session_id or "",
            kind="edit" if self.edit is not None else "preference" if self.preferred_over is not None else "reward",
            interaction=self.interaction_id or "",
            reward=None if reward is None else float(reward),
            label=self.label or "",
            text=self.edit or "",
            worse=self.preferred_over or "",
            name=without_reward_name(self.name or "", settings),
            user=self.user or "",
            comment=self.comment or "",
        )


class EraseRequest(RequestStruct):
    """`POST /rl/erase`: a session, or all sessions of a user."""

    session_id: SessionId | None = None
    user: ShortText | None = None
    """As `/rl/start_session` named it."""
    reason: ShortText | None = None

    def to_erasure(self) -> EraseSessions:
        """Returns the request.

        Raises:
            RequestError: it names neither or both.
        """
        if bool(self.session_id) == bool(self.user):
            raise RequestError("send either 'session_id' or 'user'", "session_id")
        return EraseSessions(session=self.session_id or "", user=self.user or "", reason=self.reason or "")


class LangfuseScore(msgspec.Struct):
    """`POST /api/public/scores` of Langfuse; the fields that have a meaning here."""

    name: ShortText
    value: float | bool | str
    id: ShortText | None = None
    traceId: SessionId | None = None  # noqa: N815 - Langfuse's names
    sessionId: SessionId | None = None  # noqa: N815
    observationId: Name | None = None  # noqa: N815
    dataType: Literal["NUMERIC", "BOOLEAN", "CATEGORICAL"] | None = None  # noqa: N815
    comment: LongText | None = None
    metadata: Any = None

    def to_feedback(self, settings: FeedbackSettings) -> FeedbackGiven:
        """Returns the feedback: a trace or session of Langfuse is a session here, an observation a call.

        Raises:
            RequestError: it names neither, or its value is an unknown label.
        """
        session, call = self.traceId or self.sessionId or "", self.observationId or ""
        if not session and not call:
            raise RequestError("'traceId' is missing: the id of the session, or 'observationId', of a call", "traceId")
        label = self.value if isinstance(self.value, str) else ""
        user = self.metadata.get("user", "") if isinstance(self.metadata, dict) else ""
        return FeedbackGiven(
            id=self.id or "",
            session=session,
            kind="reward",
            interaction=call,
            reward=reward_of_label(label, settings) if isinstance(self.value, str) else float(self.value),
            label=label,
            name=without_reward_name(self.name, settings),
            user=str(user)[:256],
            comment=self.comment or "",
        )


def reward_of_label(label: str, settings: FeedbackSettings) -> float:
    """Returns the reward of a label.

    Raises:
        RequestError: there is no such label.
    """
    labels = settings.rewards_of_labels()
    if (reward := (TRUE_OR_FALSE | labels).get(label.lower())) is None:
        known = ", ".join(f"'{name}'" for name in labels)
        raise RequestError(f"'label' is '{label}'; send {known}, or add it to gateway.feedback.labels", "label")
    return reward


def without_reward_name(name: str, settings: FeedbackSettings) -> str:
    """Returns the name of a judgement; empty if it is the one that is the reward."""
    return "" if name == settings.reward_name else name
