"""The session protocol's requests: wire JSON to values, with errors that name the field and the remedy."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec

from areal_actors.dialects import fields
from areal_actors.dialects.fields import Wire
from areal_actors.dialects.openapi import Endpoint
from areal_actors.errors import RequestError

W = TypeVar("W", bound=Wire)

LONGEST_WAIT_SECONDS = 600
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Key = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,512}$")]
"""What fits into a header: visible ASCII without spaces."""


class Nothing(Wire):
    """`POST /grant_capacity`, `POST /rl/end_session`: an empty body, or `{}`."""


class StartSessionRequest(Wire):
    """`POST /rl/start_session`."""

    task_id: Name
    """Sessions of one task are the members of its group; the session is called `<task_id>-<index>`."""
    api_key: Key | None = None
    """The key that the agent has already; without it a new one is made."""
    group_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Checked against the run's own, where one trains."""
    replace: bool = False
    """End and export the unfinished session that `api_key` opens, instead of a 409."""


class SetRewardRequest(Wire):
    """`POST /rl/set_reward`."""

    reward: float
    interaction_id: str | None = None
    """The last completed one if null."""


class ExportRequest(Wire):
    """`POST /export_trajectories`."""

    session_id: Name
    discount: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = 1.0
    """What a call inherits of the reward of those that continue it."""
    style: Literal["individual", "concat"] = "individual"
    """A row for each call, or for each conversation from its first call to its last."""
    branch_credit: Literal["mean", "sum"] = "mean"
    """How several calls that continue the same one count together."""
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_SECONDS)] = 0.0
    """How long to wait for the session's end, instead of a 409."""


def decoded(body: bytes, kind: type[W]) -> W:
    """The request in this body; an empty one is `{}`.

    Raises:
        RequestError: it is no JSON, a field is missing, wrong or unknown, or a number is not finite; it names the field.
    """
    body = body if body.strip() else b"{}"
    try:
        return fields.decode(msgspec.json.Decoder(kind), body)
    except RequestError as error:
        raise _about_numbers(body) or error from None


def _about_numbers(body: bytes) -> RequestError | None:
    """A better complaint about what is meant as a number: JSON has no NaN, and Python's clients send it all the same."""
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
    if isinstance(reward, bool) or not isinstance(reward, float | int) or not _is_float(reward):
        return RequestError(f"'reward' is {_shown(reward)}; expected a finite number", "reward")
    return None


def _is_float(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: Any) -> str:
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 64 else f"{value!r:.60}"


def base_url(origin: str, session: str) -> str:
    """Where an agent's OpenAI client finds its session."""
    return f"{origin}/{quote(session, safe='')}/v1"


ENDPOINTS = (
    Endpoint("post", "/grant_capacity", "Reserve a slot for a session that is about to start (admin key)", Nothing, needs_body=False),
    Endpoint("post", "/rl/start_session", "Start a session (admin key)", StartSessionRequest),
    Endpoint("post", "/rl/set_reward", "Say what an interaction was worth", SetRewardRequest),
    Endpoint("post", "/rl/end_session", "End the session", Nothing, needs_body=False),
    Endpoint("get", "/rl/session", "How the session stands; the admin key names it", query=("session_id",)),
    Endpoint(
        "post",
        "/export_trajectories",
        "The rows of a session that has ended (admin key)",
        ExportRequest,
        answers=("application/json", "application/msgpack"),
    ),
    Endpoint("get", "/ready", "Can sessions be served?", needs_key=False),
    Endpoint("get", "/metrics", "Counts for Prometheus", answers=("text/plain",), needs_key=False),
)
"""For the OpenAPI description."""
