"""Requests of the session protocol: JSON to structs, with errors that name the field and a remedy."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.scalars import HIGHEST_REWARD
from areal_actors.gateway.protocols import fields
from areal_actors.gateway.protocols.fields import RequestStruct
from areal_actors.gateway.protocols.openapi import Endpoint

W = TypeVar("W", bound=RequestStruct)

LONGEST_WAIT_SECONDS = 600
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
SessionId = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
"""A task id with an index: longer than any task id."""
Key = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,512}$")]
"""Characters allowed in an HTTP header: visible ASCII without spaces."""


class EmptyRequest(RequestStruct):
    """`POST /grant_capacity`, `POST /rl/end_session`: an empty body, or `{}`."""


class StartSessionRequest(RequestStruct):
    """`POST /rl/start_session`."""

    task_id: Name
    """Sessions of one task form a group; the session's id is `<task_id>-<index>`."""
    api_key: Key | None = None
    """Existing key of the agent; without it a new one is generated."""
    group_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """If given, must equal the group size of the training run."""
    replace: bool = False
    """If `api_key` has an unfinished session: end and export it, instead of a 409."""
    user: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    """User whom the session serves, so that all sessions of a user can be erased."""
    consent: bool | None = None
    """False if nothing may be learned from the session: its conversation is not kept. Without it that of the header
    `x-areal-consent`, or `gateway.default_consent`."""


class SpanRequest(RequestStruct):
    """A reward of a part of a completion, in `POST /rl/set_reward`: of a `text`, or of a range."""

    reward: Annotated[float, msgspec.Meta(ge=-HIGHEST_REWARD, le=HIGHEST_REWARD)] | bool
    text: str | None = None
    """Every place where the completion has this text."""
    start: int | None = None
    """First character of the range, counted in the completion's text without special tokens."""
    end: int | None = None
    """End of the range, exclusive."""
    name: str | None = None
    """Name of the reward, by which a group's are compared; `span` if null."""


class SetRewardRequest(RequestStruct):
    """`POST /rl/set_reward`."""

    reward: Annotated[float, msgspec.Meta(ge=-HIGHEST_REWARD, le=HIGHEST_REWARD)] | bool
    """`true` is 1, as in rewards of an agent."""
    interaction_id: str | None = None
    """If null, the last completed interaction."""
    role: str | None = None
    """Name of the role in which the model answered (`task.baseline_over = "roles"`)."""
    spans: list[SpanRequest] = []
    """Rewards of parts of the completion, beside its own; they replace those set before."""


class SelectTrainedRequest(RequestStruct):
    """`POST /rl/select_trained`."""

    interaction_ids: Annotated[list[Name], msgspec.Meta(min_length=1)]
    """Completed interactions that are trained; the other ones completed so far become context."""


class ExportRequest(RequestStruct):
    """`POST /export_trajectories`."""

    session_id: SessionId
    discount: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = 1.0
    """Factor of the reward that a call inherits from the calls that continue it."""
    style: Literal["individual", "concat"] = "individual"
    """One row per call, or one per conversation from its first call to its last."""
    branch_credit: Literal["mean", "sum"] = "mean"
    """Aggregation over several calls that continue the same one."""
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_SECONDS)] = 0.0
    """Seconds to wait for the session's end, instead of a 409."""


def decode_request(body: bytes, kind: type[W]) -> W:
    """Decode a request's body; an empty one is the same as `{}`.

    Raises:
        RequestError: it is not JSON, a field is missing, wrong or unknown, or a number is not finite; it names the
            field.
    """
    body = body if body.strip() else b"{}"
    try:
        return fields.decode(body, kind)
    except RequestError as error:
        raise _number_error(body) or error from None


def _number_error(body: bytes) -> RequestError | None:
    """Return a clearer error for an invalid number: JSON has no NaN, but Python clients send it."""
    try:
        loose = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(loose, dict):
        return None
    for field, value in loose.items():
        if isinstance(value, float) and not math.isfinite(value):
            return RequestError(f"'{field}' is {value!r}; expected a finite number", field)
    reward = loose.get("reward", 0.0)
    try:
        is_finite = math.isfinite(reward)
    except (TypeError, OverflowError):
        is_finite = False
    return (
        None if is_finite else RequestError(f"'reward' is {_format_number(reward)}; expected a finite number", "reward")
    )


def _format_number(value: Any) -> str:
    return (
        f"a number of {value.bit_length()} bits"
        if isinstance(value, int) and value.bit_length() > 64
        else f"{value!r:.60}"
    )


def base_url(origin: str, session: str) -> str:
    """Return the base URL of a session for the agent's OpenAI client."""
    return f"{origin}/{quote(session, safe='')}/v1"


ENDPOINTS = (
    Endpoint(
        "post",
        "/grant_capacity",
        "Reserve a slot for a session to be started (admin key)",
        EmptyRequest,
        needs_body=False,
    ),
    Endpoint("post", "/rl/start_session", "Start a session (admin key)", StartSessionRequest),
    Endpoint("post", "/rl/set_reward", "Set the reward of an interaction", SetRewardRequest),
    Endpoint(
        "get",
        "/rl/interaction",
        "Token ids, log-probabilities and weight versions of a completed call",
        query=("interaction_id",),
    ),
    Endpoint("post", "/rl/select_trained", "Train only these completed calls of the session", SelectTrainedRequest),
    Endpoint("post", "/rl/end_session", "End the session", EmptyRequest, needs_body=False),
    Endpoint(
        "get",
        "/rl/session",
        "Status of the session; with the admin key, `session_id` is required",
        query=("session_id",),
    ),
    Endpoint(
        "post",
        "/export_trajectories",
        "Rows of a finished session (admin key)",
        ExportRequest,
        answers=("application/json", "application/msgpack"),
    ),
    Endpoint("get", "/ready", "Can sessions be served?", needs_key=False),
    Endpoint("get", "/metrics", "Counts for Prometheus", answers=("text/plain",), needs_key=False),
)
"""Endpoints of the session protocol, for the OpenAPI description."""
