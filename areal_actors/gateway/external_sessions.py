"""Sessions of external agents: started, ended and exported over HTTP, in the slots that the staleness gate grants.

The session manager holds them; rollout workers open their sessions at the manager itself. Starts and ends are folded
from the log, so that a restarted gateway keeps names and capacity; sessions whose tokens were lost with the old gateway
are abandoned.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from functools import partial

import msgspec

from areal_actors.core.gateways import GATEWAY, GatewayShare, gateway_of_session
from areal_actors.core.values import SamplingParams
from areal_actors.gateway.session_ends import SessionEnds
from areal_actors.gateway.session_requests import SessionRequests
from areal_actors.gateway.sessions.capacity import ExternalCapacity, ExternalSessionsState, ExternalSlots
from areal_actors.gateway.sessions.episode_end import Ending, EndingEvent, expired_event, outcome
from areal_actors.gateway.sessions.group_ends import end_slot, end_unstarted, lost_sessions, work_of
from areal_actors.gateway.sessions.kept_conversations import ConversationEvent
from areal_actors.gateway.sessions.keys import session_key
from areal_actors.gateway.sessions.table import FinishedSession, Session
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.gateway.sharing import (
    ASK_SECONDS,
    SOON_SECONDS,
    ask_first,
    misdirected_refusal,
    no_capacity,
    unavailable,
)
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    CapacityGranted,
    CapacityReserved,
    EndSession,
    EpisodeAbandoned,
    GetTrajectory,
    Refusal,
    ReserveCapacity,
    SessionClosed,
    SessionCreated,
    SessionStarted,
    StartSession,
    TrajectoryExported,
    TrajectoryReply,
)
from areal_actors.rewards.acceptance import Acceptance
from areal_actors.runtime.actor import Context


class ExternalSessions:
    """The first session of a task opens a granted group; a session without a reward is abandoned and never trained."""

    def __init__(
        self,
        config: GatewaySettings,
        capacity: ExternalCapacity,
        ends: SessionEnds,
        *,
        secret: bytes,
        sampling: SamplingParams,
        acceptance: Acceptance | None,
        share: GatewayShare,
    ) -> None:
        """`ends` and `share` are those of the gateway.

        `acceptance` decides which ended sessions are trained; without it all are.
        """
        self.share = share
        self.config = config
        self.ends, self.calls, self.registry = ends, ends.calls, ends.registry
        self.requests = SessionRequests(ends.calls, self._unknown_session)
        self.secret = secret
        self.sampling = sampling
        self.acceptance = acceptance
        self.paused_at = -math.inf  # when the last pause of this process ended
        self.caught_up = False
        """True once the log has been folded; before that, names and slots could be assigned twice."""
        self.slots = ExternalSlots(capacity)
        """Slots and sessions, those included whose `SessionStarted` is not read back from the log yet."""
        self.logged = ExternalSlots(capacity.copy())
        """Slots and sessions as folded from the log alone. A snapshot holds these, so that a gateway that restores it
        and reads the rest of the log has the same state as one that reads the whole log."""
        self.ending: set[str] = set()
        self.session_ended = asyncio.Condition()
        self.session_opened = asyncio.Condition()
        """Notified when gateway 0 has started a session for this one."""

    # ---------------------------------------------------------------- requests of agents

    async def reserve_capacity(self, request: ReserveCapacity, context: Context) -> AsyncIterator[CapacityReserved]:
        """Reserve a free slot for a while."""
        if refused := self._unavailable():
            yield CapacityReserved(refused=refused)
        elif self.share.number:
            yield await ask_first(request, CapacityReserved, context)
        elif not self.slots.capacity.reserve(context.now, self.config.reservation_ttl_seconds):
            yield CapacityReserved(refused=no_capacity("no slot is free"))
        else:
            yield CapacityReserved(seconds=self.config.reservation_ttl_seconds)

    async def start_session(
        self, request: StartSession, context: Context
    ) -> AsyncIterator[EndingEvent | ConversationEvent | SessionStarted | SessionCreated]:
        """Start a session in a free slot; an unfinished one of the same key ends before, if the request allows it."""
        unfinished = self.registry.live_session_of_key(request.api_key)
        if refused := self._refusal(request, unfinished):
            yield SessionCreated(refused=refused)
            return
        if unfinished is not None:
            async for ending in self._end(unfinished, context):
                yield ending
        if self.share.number:
            yield await self._start_by_first_gateway(request, context)
            return
        if (slot := self.slots.capacity.next_slot(request.task)) is None:
            yield SessionCreated(refused=no_capacity(f"no group is left for task '{request.task}'"))
            return
        name = self.share.mark(slot.session, request.gateway)
        key = request.api_key or self.share.mark(session_key(self.secret, f"outside {slot.session}"), request.gateway)
        digest = self.registry.digest(key)
        started = SessionStarted(
            session=name,
            work=work_of(self.slots, slot, self.sampling),
            member=slot.member,
            index=slot.index,
            key=digest,
            user=request.user,
            consent=request.consent,
        )
        if request.gateway == self.share.number:
            self._open(started, context.now)
        else:
            self.registry.remember(digest, name)
        self.slots.start(started, context.now, reserved=True)
        yield started
        yield SessionCreated(session=name, api_key=key)

    def _open(self, started: SessionStarted, now: float) -> None:
        lease = self.config.idle_timeout_seconds
        named = partial(Session, id=started.session, api_key="", key=started.key, work=started.work)
        self.registry.open(named(lease_seconds=lease, expires=now + lease, external=True, is_kept=started.consent))

    async def _start_by_first_gateway(self, request: StartSession, context: Context) -> SessionCreated:
        """Have gateway 0 start a session for this one; the log brings it."""
        created = await ask_first(msgspec.structs.replace(request, gateway=self.share.number), SessionCreated, context)
        if created.refused is not None:
            return created
        try:
            with context.waiting(f"session {created.session} in the log", ASK_SECONDS):
                async with asyncio.timeout(ASK_SECONDS), self.session_opened:
                    await self.session_opened.wait_for(lambda: self.registry.find(created.session) is not None)
        except TimeoutError:
            return SessionCreated(
                refused=unavailable(f"session {created.session} was started, but the log has not brought it here")
            )
        return created

    def _refusal(self, request: StartSession, unfinished: Session | None) -> Refusal | None:
        size = self.slots.capacity.group_size
        if closed := self._unavailable():
            return closed
        if request.group_size not in {0, size} and not self.slots.capacity.slots:
            reason = (
                f"'group_size' is {request.group_size}, but this run trains groups of {size}: send {size}, or leave"
                " it out"
            )
            return Refusal(status=400, reason=reason, field="group_size")
        if unfinished is not None and not (
            request.replace and unfinished.external and unfinished.id not in self.ending
        ):
            reason = (
                f"'api_key' opens session {unfinished.id}, which is unfinished: end it, or send \"replace\": true to"
                " end and export it"
            )
            return Refusal(status=409, reason=reason, field="api_key")
        if request.api_key and self.share.count > 1 and (other := self._open_elsewhere(request)):
            reason = (
                f"'api_key' opens session {other} of {gateway_of_session(other)}, which is unfinished: end it there"
            )
            return Refusal(status=409, reason=reason, field="api_key")
        return None

    def _open_elsewhere(self, request: StartSession) -> str:
        """An unfinished session with the key of a request, neither here nor where it is to start; empty for none."""
        digest, shares = (
            self.registry.digest(request.api_key),
            (self.share, GatewayShare(number=request.gateway, count=self.share.count)),
        )
        with_key = (started.session for started in self.slots.started.values() if started.key == digest)
        return next((session for session in with_key if not any(share.owns_session(session) for share in shares)), "")

    def is_served(self) -> bool:
        """Returns True if the model is served and not trained: the number of sessions is fixed, and none is granted."""
        return bool(self.slots.capacity.slots)

    def _unavailable(self) -> Refusal | None:
        """The refusal if no session may start now."""
        if not self.slots.capacity.group_size:
            reason = (
                'the rollout workers of this run run its episodes; for external agents set task.agent = "online" in the'
                " recipe"
            )
            return Refusal(status=403, reason=reason)
        return None if self.caught_up else unavailable("the gateway is reading the run's log")

    async def end_session(
        self, request: EndSession, context: Context
    ) -> AsyncIterator[EndingEvent | ConversationEvent | SessionClosed]:
        """End a session: an external one is exported or abandoned now, one of a rollout worker when it is scored."""
        session = self.registry.find(request.session)
        if session is not None and not session.external:
            self.registry.update(session.transition("end", context.now))
        elif session is not None and session.id not in self.ending:
            async for ending in self._end(session, context):
                yield ending
        if session is not None and (still := self.registry.find(request.session)) is not None:
            yield SessionClosed(session=session.id, interactions=len(session.turns), state=still.state)
        elif (kept := self.registry.find_finished(request.session)) is not None:
            yield SessionClosed(session=kept.id, interactions=kept.calls, state=kept.state, detail=kept.detail)
        else:
            yield SessionClosed(refused=self._unknown_session(request.session))

    async def get_trajectory(self, request: GetTrajectory, context: Context) -> AsyncIterator[TrajectoryReply]:
        """Look up the trajectory of a finished session, and wait for its end as long as the request allows."""
        name = request.session
        if self.registry.find(name) is not None and request.wait_seconds > 0:
            with context.waiting(f"the end of session {name}", request.wait_seconds):
                await self._await_end(name, request.wait_seconds)
        if (session := self.registry.find(name)) is not None:
            reason = (
                f"session {name} is {session.state}: end it first (POST /rl/end_session), or send wait_seconds to wait"
                " for its end"
            )
            yield TrajectoryReply(refused=Refusal(status=409, reason=reason, retry_after=SOON_SECONDS))
        elif (kept := self.registry.find_finished(name)) is None:
            yield TrajectoryReply(refused=self._unknown_session(name))
        elif kept.trajectory is None:
            yield TrajectoryReply(refused=Refusal(status=410, reason=f"session {name} was abandoned: {kept.detail}"))
        else:
            yield TrajectoryReply(session=name, trajectory=kept.trajectory)

    async def _await_end(self, session: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self.session_ended:
                await self.session_ended.wait_for(lambda: self.registry.find(session) is None)
        except TimeoutError:
            return

    def _unknown_session(self, session: str) -> Refusal:
        if owner := self.share.elsewhere(session):
            return misdirected_refusal(session, owner)
        if not self.caught_up:
            return unavailable("the gateway is reading the run's log")
        if self.registry.is_known(session):
            return Refusal(
                status=410, reason=f"session {session} is over and no longer kept (gateway.finished_sessions_cached)"
            )
        return Refusal(status=404, reason=f"there is no session '{session}'", field="session_id")

    # ---------------------------------------------------------------- ends of sessions

    async def _end(self, session: Session, context: Context) -> AsyncIterator[EndingEvent | ConversationEvent]:
        """Stop accepting calls, and yield the end of the session; can be called again after an interruption."""
        self.ending.add(session.id)
        try:
            session = self.registry.update(session.transition("end", context.now))
            ending = outcome(session, chat=self.calls.chat, served=self.is_served())
            if self.acceptance is not None and isinstance(ending, TrajectoryExported):
                ending = await self.acceptance.outcome(session.work, rewards=session.rewards) or ending
            for event in self.ends.report(session, ending):
                yield event
            await self.record_end(ending, context.now)
        finally:
            self.ending.discard(session.id)

    def is_ending(self, event: EpisodeAbandoned) -> bool:
        """Returns True if the session of an abandoned attempt is just being ended here, with its conversation."""
        session = self.registry.session_of_episode(event.work.episode)
        return session is not None and session.id in self.ending and session.work.attempt == event.work.attempt

    async def record_end(self, ending: Ending, now: float) -> None:
        """Record that an episode was exported or abandoned; idempotent."""
        exported = ending.trajectory if isinstance(ending, TrajectoryExported) else None
        if (started := end_slot(self.slots, ending, now)) is None:
            return
        if not self.share.owns_session(started.session):
            return
        live = self.registry.find(started.session)
        self.registry.add_finished(
            FinishedSession(
                id=started.session,
                task=started.work.task.id,
                state="exported" if exported is not None else "abandoned",
                detail=ending.detail if isinstance(ending, EpisodeAbandoned) else "",
                calls=(
                    len(live.turns) if live is not None else len(exported.interactions) if exported is not None else 0
                ),
                trajectory=exported,
            )
        )
        if live is not None:
            self.registry.close(live, finished=True)
        async with self.session_ended:
            self.session_ended.notify_all()

    async def end_expired(self, context: Context, paused: float) -> AsyncIterator[EndingEvent | ConversationEvent]:
        """End sessions whose lease has expired, and group members that were not started in time.

        A pause of this process does not count.
        """
        if paused:
            self.registry.extend(paused)
            self.paused_at = context.now
        for session in self.registry.expired_sessions(context.now):
            if session.id in self.ending:
                continue
            if session.external and (session.state == "ended" or (self.is_served() and session.turns)):
                async for ending in self._end(session, context):
                    yield ending
                continue
            if not session.external:
                self.registry.close(session)
            yield (lost := expired_event(session))
            for kept in self.ends.conversations.keep(session, "abandoned"):
                yield kept
            await self.record_end(lost, context.now)
        limits = self.config.idle_timeout_seconds, self.config.reservation_ttl_seconds
        if self.share.number == 0 and context.now - self.paused_at >= max(limits):
            for unstarted in end_unstarted(self.slots, context.now, *limits, self.sampling):
                yield unstarted

    # ---------------------------------------------------------------- events of the log

    def capacity_granted(self, event: CapacityGranted) -> None:
        """Fold a grant of groups."""
        for slots in (self.slots, self.logged):
            slots.capacity.grant(event.first_group, event.groups)

    async def session_started(self, event: SessionStarted, context: Context) -> None:
        """Fold the event; sessions of this process are known already, those that gateway 0 started for it open now."""
        self.logged.start(event, context.now)
        if event.work.episode not in self.slots.started and not self.registry.is_finished(event.work.episode):
            self.slots.start(event, context.now)
            self.registry.remember(event.key, event.session)
            if self.caught_up and not context.replayed and self.share.number and self.share.owns_session(event.session):
                self._open(event, context.now)
                async with self.session_opened:
                    self.session_opened.notify_all()

    async def fold_end(self, ending: Ending, now: float) -> None:
        """Fold the end of an episode, or of an attempt, from the log."""
        end_slot(self.logged, ending, now)
        await self.record_end(ending, now)

    def restore(self, state: ExternalSessionsState) -> None:
        """Restore external sessions from a snapshot."""
        for slots in (self.slots, self.logged):
            slots.restore(state)
        for started in state.started.values():
            self.registry.remember(started.key, started.session)

    async def actor_started(self, event: ActorStarted, context: Context) -> AsyncIterator[EpisodeAbandoned]:
        """Abandon lost sessions: this gateway's own start follows all earlier events in the log."""
        if context.replayed or self.caught_up or event.actor.rpartition("-")[0] != GATEWAY or event.pid != os.getpid():
            return
        if self.share.count > 1 and event.actor != self.share.name:
            return
        for lost in lost_sessions(self.slots, self.share, self.registry):
            await self.record_end(lost, context.now)
            yield lost
        self.caught_up = True

    async def gateway_gone(self, event: ActorFailed, context: Context) -> AsyncIterator[EpisodeAbandoned]:
        """Abandon the sessions of another gateway as soon as it is lost, so that replacements find their groups."""
        kind, _, number = event.actor.rpartition("-")
        if context.replayed or not self.caught_up or self.share.number or kind != GATEWAY or not number.isdecimal():
            return
        its = GatewayShare(number=int(number), count=self.share.count)
        for lost in lost_sessions(self.slots, its, self.registry):
            await self.record_end(lost, context.now)
            yield lost
