"""Requests between the gateways of a run, and refusals of those that another gateway has to answer."""

from __future__ import annotations

from typing import TypeVar

from areal_actors.core.errors import SessionElsewhere
from areal_actors.core.gateways import gateway_name
from areal_actors.gateway.http_answers import MISDIRECTED
from areal_actors.messages import CapacityReserved, Refusal, ReserveCapacity, SessionCreated, StartSession
from areal_actors.runtime.actor import Context
from areal_bus.errors import BusError
from areal_bus.message import Request

FIRST = gateway_name(0)
"""The gateway that hands out the slots of external agents."""
ASK_SECONDS = 10.0
"""Timeout for that gateway to answer, and for the log to bring what it has started."""
SOON_SECONDS = 1.0
LATER_SECONDS = 5.0
"""`Retry-After` of a wait for training progress."""

R = TypeVar("R", CapacityReserved, SessionCreated)


async def ask_first(request: Request[R], refused: type[R], context: Context) -> R:
    """Ask gateway 0; a `refused` reply to be retried if it does not answer."""
    assert isinstance(request, StartSession | ReserveCapacity)
    try:
        return await context.ask(request, timeout=ASK_SECONDS, to=FIRST)
    except BusError as error:
        return refused(refused=unavailable(f"{FIRST}, which hands out slots, does not answer ({error})"))


def unavailable(reason: str) -> Refusal:
    """Refusal of a request that may succeed soon."""
    return Refusal(status=503, reason=f"{reason}; retry", retry_after=SOON_SECONDS)


def no_capacity(reason: str) -> Refusal:
    """Refusal of a session that may start when others have ended."""
    return Refusal(
        status=429,
        reason=f"{reason}; retry when sessions have ended and training has progressed",
        retry_after=LATER_SECONDS,
    )


def misdirected_refusal(session: str, owner: str) -> Refusal:
    """Refusal of a request for a session of another gateway."""
    return Refusal(status=MISDIRECTED, reason=str(SessionElsewhere(f"session {session}", owner)))
