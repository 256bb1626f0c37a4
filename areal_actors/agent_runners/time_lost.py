"""Whose fault it is that an agent did not return: its own, the engine's or the gateway's.

The rule: an attempt that failed while a model call of it was open, or after the agent had left one, is the failure of what that call
waited for if the wait took more than half of the attempt's time. A gateway that does not answer, or no longer knows the session, is
at fault itself. Everything else is the agent's; what its last call waited for is in the reason all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from areal_actors.agent_runners.agent_runner import Cause
from areal_actors.messages import EpisodeAbandoned, OpenCall, RunEpisode, SessionDescribed
from bus.message import FrozenMeta

BLAMED_SHARE = 0.5
"""Of an attempt's time, which one call must have waited for the attempt to be the failure of what it waited for."""
UNKNOWN = 404
"""Status of a session that the gateway has never had, or had before it was restarted."""


class FailedAttempt(msgspec.Struct, metaclass=FrozenMeta):
    """An attempt that has failed, before it is known why."""

    work: RunEpisode
    reason: str
    """`agent` or `timeout`."""
    message: str
    """What happened."""
    advice: str = ""
    """What to do about it if nothing else is at fault."""
    notes: tuple[str, ...] = ()
    """What is known of the agent's end, to be put behind."""
    seconds: float = 0.0
    """That the agent had run for."""

    def ended(self, reason: str = "", cause: str = "") -> EpisodeAbandoned:
        """The end of the attempt, by this cause in place of the advice."""
        causes = [cause, *(note for note in self.notes if isinstance(note, Cause))]
        known = "; ".join(filter(None, causes)) or self.advice
        rest = "".join(note for note in self.notes if not isinstance(note, Cause))
        return EpisodeAbandoned(work=self.work, reason=reason or self.reason, detail="; ".join(filter(None, (self.message, known))) + rest)


def attribute_failure(failed: FailedAttempt, described: SessionDescribed) -> EpisodeAbandoned | None:
    """How an attempt ends whose session the gateway describes so; None if somebody else runs the episode now, and it is not over."""
    if described.replaced_by:
        return None
    if described.refused is not None and described.refused.status == UNKNOWN:
        return _caused_by(
            failed, "gateway", f"the gateway has lost the session, as it does when it is restarted ({described.refused.reason})"
        )
    if described.engine_failure:
        return _caused_by(failed, "engine", described.engine_failure)
    return _by_open_call(failed, described.open_calls)


def _by_open_call(failed: FailedAttempt, calls: Sequence[OpenCall]) -> EpisodeAbandoned:
    if not calls:
        return failed.ended()
    longest = max(calls, key=lambda call: call.seconds)
    if longest.seconds <= BLAMED_SHARE * failed.seconds:
        return msgspec.structs.replace(failed, message=f"{failed.message}; {format_wait(longest)}").ended()
    if failed.reason == "timeout":
        return failed.ended(longest.at, format_wait(longest))
    return _caused_by(failed, longest.at, format_wait(longest))


def gateway_unreachable(failed: FailedAttempt, error: Exception) -> EpisodeAbandoned:
    """How an attempt ends when the gateway cannot be asked about it."""
    return _caused_by(failed, "gateway", f"the gateway does not answer ({error})")


def format_wait(call: OpenCall) -> str:
    """For how long a call of the agent had waited, and for what."""
    when = " when the agent left it" if call.left else ""
    return f"its model call had waited {call.seconds:.0f} s for {call.waits_for}{when}"


def _caused_by(failed: FailedAttempt, reason: str, cause: str) -> EpisodeAbandoned:
    """A cause that came before the agent's failure."""
    quiet = msgspec.structs.replace(failed, advice="").ended()
    return msgspec.structs.replace(quiet, reason=reason, detail=f"{cause}; then the agent failed: {quiet.detail}")
