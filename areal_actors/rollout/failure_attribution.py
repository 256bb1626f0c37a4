"""Attributes a failed attempt to the agent, the engine or the gateway.

The rule: if a model call of the attempt was open or abandoned, and its wait took more than half of the attempt's time,
the failure is that of the component that the call waited for. A gateway that does not answer, or has lost the session,
is at fault itself. All other failures are the agent's; the detail still has the wait of its longest call.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from areal_actors.core.agent_host.model_errors import NO_TRAITS, ErrorTraits
from areal_actors.messages import EpisodeAbandoned, OpenCall, RunEpisode, SessionDescribed
from areal_actors.rollout.agent_runner import Cause
from areal_bus.message import FrozenMeta

BLAMED_SHARE = 0.5
"""Share of an attempt's time above which one call's wait is the cause of its failure."""
UNKNOWN, OVER, UNREAD = 404, 410, 503
"""Status of a session that the gateway does not know, as after its restart; of one that is over; and of one that it
does not know while it still reads the log."""


class FailedAttempt(msgspec.Struct, metaclass=FrozenMeta):
    """A failed attempt, before its cause is known."""

    work: RunEpisode
    reason: str
    """`agent` or `timeout`."""
    message: str
    """The agent's error."""
    advice: str = ""
    """Remedy if nothing else is at fault."""
    notes: tuple[str, ...] = ()
    """Notes on the agent's end, appended to the detail."""
    seconds: float = 0.0
    """Duration of the agent's run."""
    traits: ErrorTraits = NO_TRAITS
    """The cause as far as the agent's exception has it."""

    def to_event(self, reason: str = "", cause: str = "") -> EpisodeAbandoned:
        """The end of the attempt, with this cause in place of the advice."""
        causes = [cause, *(note for note in self.notes if isinstance(note, Cause))]
        detail = "; ".join(filter(None, causes)) or self.advice
        rest = "".join(note for note in self.notes if not isinstance(note, Cause))
        return EpisodeAbandoned(
            work=self.work, reason=reason or self.reason, detail="; ".join(filter(None, (self.message, detail))) + rest
        )


def attribute_failure(failed: FailedAttempt, described: SessionDescribed) -> EpisodeAbandoned | None:
    """The end of an attempt, given the gateway's description of its session.

    None if another worker runs the episode now, or if the attempt has ended in the log, as surplus or with its lease:
    the agent failed because its session was over.
    """
    refused = described.refused
    if described.replaced_by or described.state == "abandoned" or (refused is not None and refused.status == OVER):
        return None
    if refused is not None and refused.status in (UNKNOWN, UNREAD):
        return _with_cause(
            failed, "gateway", f"the gateway has lost the session, as it does when it is restarted ({refused.reason})"
        )
    if described.engine_failure:
        return _with_cause(failed, "engine", described.engine_failure)
    return _by_open_call(failed, described.open_calls)


def _by_open_call(failed: FailedAttempt, calls: Sequence[OpenCall]) -> EpisodeAbandoned:
    if not calls:
        return failed.to_event()
    longest = max(calls, key=lambda call: call.seconds)
    if longest.seconds <= BLAMED_SHARE * failed.seconds:
        return msgspec.structs.replace(failed, message=f"{failed.message}; {format_wait(longest)}").to_event()
    if failed.reason == "timeout":
        return failed.to_event(longest.at, format_wait(longest))
    return _with_cause(failed, longest.at, format_wait(longest))


def gateway_unreachable(failed: FailedAttempt, error: Exception) -> EpisodeAbandoned:
    """The end of an attempt about which the gateway does not answer."""
    return _with_cause(failed, "gateway", f"the gateway does not answer ({error})")


def format_wait(call: OpenCall) -> str:
    """Duration and object of a call's wait."""
    when = " when the agent left it" if call.left else ""
    return f"its model call had waited {call.seconds:.0f} s for {call.waits_for}{when}"


def _with_cause(failed: FailedAttempt, reason: str, cause: str) -> EpisodeAbandoned:
    """The end of an attempt by a cause that preceded the agent's failure."""
    without_advice = msgspec.structs.replace(failed, advice="").to_event()
    detail = f"{cause}; then the agent failed: {without_advice.detail}"
    return msgspec.structs.replace(without_advice, reason=reason, detail=detail)
