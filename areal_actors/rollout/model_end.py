"""Decides whether the model itself has ended an attempt whose agent raised.

Such an episode is scored, since what it did costs something.
Two sides must agree: the agent's exception (`core/agent_host/model_errors.py`) and the gateway's record of the session.
An agent that fails for another reason after its context was full has failed by itself.
"""

from __future__ import annotations

from areal_actors.messages import SessionDescribed
from areal_actors.rollout.failure_attribution import FailedAttempt


def find_model_cause(failed: FailedAttempt, described: SessionDescribed) -> str:
    """The deed of the model that ended an attempt; empty if there is none, or it has answered no call.

    A failure that the gateway, an engine or the time limit explains is not asked about.
    """
    if failed.reason != "agent" or not described.interactions:
        return ""
    traits = failed.traits
    if described.overflow and traits.reports_overflow:
        return f"its conversation no longer fits the context: {described.overflow}"
    if traits.model_error:
        return f"the agent raised {traits.model_error}: {failed.message}"
    if described.has_written:
        return f"it wrote text that is not JSON: {failed.message}"
    return ""
