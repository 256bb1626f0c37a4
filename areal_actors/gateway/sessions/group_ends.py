"""Ends of members of a group of external agents.

They are sessions that were lost with their gateway, and members that never had one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from areal_actors.core.gateways import GatewayShare
from areal_actors.core.values import SamplingParams, Task
from areal_actors.gateway.sessions.capacity import ExternalSlots, GroupSlot
from areal_actors.gateway.sessions.episode_end import Ending, episode_of
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.messages import EpisodeAbandoned, RunEpisode, SessionStarted, TrajectoryExported


def work_of(slots: ExternalSlots, slot: GroupSlot, sampling: SamplingParams) -> RunEpisode:
    """Returns the work of the session that takes a slot: the next attempt at its episode."""
    work = RunEpisode(episode=slot.episode, group=str(slot.group), task=Task(id=slot.task, data={}), sampling=sampling)
    return msgspec.structs.replace(work, attempt=slots.attempts.get(slot.episode, 0) + 1)


def lost_sessions(slots: ExternalSlots, share: GatewayShare, registry: SessionRegistry) -> list[EpisodeAbandoned]:
    """Returns the ends of a gateway's sessions whose tokens were lost with its process: those not in this registry.

    The next session of the task takes the slot in the group; a served model has no groups.
    """
    left = 0 if slots.capacity.slots else 1
    own = [
        started
        for started in slots.started.values()
        if share.owns_session(started.session) and not registry.find(started.session)
    ]
    return [
        EpisodeAbandoned(
            work=msgspec.structs.replace(started.work, attempts_left=left),
            reason="session",
            detail=f"the gateway was lost, and the tokens of session {started.session} with it",
        )
        for started in own
    ]


def end_unstarted(
    slots: ExternalSlots, now: float, idle_seconds: float, rejoin_seconds: float, sampling: SamplingParams
) -> Iterator[EpisodeAbandoned]:
    """End the members for which no session was started in time; see `ExternalSlots.late`."""
    for slot in slots.late(now, idle_seconds, rejoin_seconds):
        work = work_of(slots, slot, sampling)
        detail = (
            f"no session was started within {idle_seconds:g} s of the first session of its group (task '{slot.task}')"
        )
        if slot.task in slots.rejoining:
            lost = "its session" if work.attempt > 1 else "a session of its task"
            detail = (
                f"{lost} was lost with its gateway, and no other session of task '{slot.task}' was started for"
                f" {rejoin_seconds:g} s"
            )
        slots.end_episode(slot.episode, now, exported=False)
        yield EpisodeAbandoned(work=work, reason="lost", detail=detail)


def end_slot(slots: ExternalSlots, ending: Ending, now: float) -> SessionStarted | None:
    """Record the end of an episode, or of an attempt with attempts left; idempotent.

    Returns its session if it had not ended.
    """
    if isinstance(ending, EpisodeAbandoned) and ending.work.attempts_left:
        return slots.lose(ending.work, now)
    return slots.end_episode(episode_of(ending), now, exported=isinstance(ending, TrajectoryExported))
