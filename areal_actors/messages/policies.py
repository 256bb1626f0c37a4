"""Requests to the gateway of a policy from the run whose agents call it: an attempt begins, or has ended."""

from __future__ import annotations

from typing import ClassVar

from areal_actors.core.values import EndedBy
from areal_actors.messages.rollout import RunEpisode, SessionOpened
from areal_actors.messages.session import SessionClosed
from areal_bus.message import Reply, Request


class OpenPolicySession(Request[SessionOpened]):
    """Open the session of an attempt at an episode, under the name of its session in the run whose agent calls."""

    subject: ClassVar[str] = "policy.session.open"
    reply: ClassVar[type[Reply]] = SessionOpened
    session: str
    work: RunEpisode


class EndPolicySession(Request[SessionClosed]):
    """Score the session of an episode, or abandon it with a reason."""

    subject: ClassVar[str] = "policy.session.end"
    reply: ClassVar[type[Reply]] = SessionClosed
    work: RunEpisode
    """Attempt that ended; only the names of an exported episode are known."""
    reward: float | None = None
    """Reward of the run's own policy; None if the attempt was abandoned."""
    metrics: dict[str, float] = {}
    """Further numbers from the reward function."""
    output: str = ""
    """Text that was scored."""
    ended_by: EndedBy = "agent"
    """Party that ended the episode."""
    end_cause: str = ""
    """Deed of the model that ended the episode; empty if the agent returned."""
    reason: str = ""
    """Reason of an abandoned attempt."""
    detail: str = ""
    """Cause of an abandoned attempt, in words."""
