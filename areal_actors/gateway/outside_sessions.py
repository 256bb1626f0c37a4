"""Sessions of agents outside the run: they start, end and export them over HTTP, and take the places that the gate grants.

The part of the session manager that no rollout worker needs. What has started and ended is folded from the log, so that a
restarted gateway goes on with names and capacity; sessions whose tokens went down with it are abandoned by name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.agent_runners.acceptance import Acceptance
from areal_actors.conversations.rows import apply_rewards
from areal_actors.gateway.open_calls import OpenCalls
from areal_actors.gateway.worker_pool import WorkerPool
from areal_actors.messages import (
    ActorStarted,
    CapacityGranted,
    CapacityReserved,
    DescribeSession,
    EndSession,
    EpisodeAbandoned,
    GiveTrajectory,
    InteractionTold,
    Refusal,
    ReserveCapacity,
    RunEpisode,
    SessionClosed,
    SessionDescribed,
    SessionGiven,
    SessionStarted,
    StartSession,
    TrajectoryExported,
    TrajectoryGiven,
)
from areal_actors.sessions.book import SessionBook
from areal_actors.sessions.capacity import Capacity
from areal_actors.sessions.episode_end import NO_REWARD_OUTSIDE, Ending, outcome, unused
from areal_actors.sessions.keys import session_key
from areal_actors.sessions.outside_fold import OutsideFold, OutsideState, seat_of
from areal_actors.sessions.table import KeptSession, Session
from areal_actors.settings import GatewaySettings
from areal_actors.values import Interaction, SamplingParams, Task

SOON_SECONDS, LATER_SECONDS = 1.0, 5.0
"""When to ask again for what the next moment brings, and for what training has to make room for."""


class OutsideSessions(Actor):
    """The first session of a task begins a granted group; one that has no reward is abandoned and never becomes a row."""

    def __init__(
        self,
        config: GatewaySettings,
        capacity: Capacity,
        *,
        secret: bytes,
        sampling: SamplingParams,
        acceptance: Acceptance | None = None,
    ) -> None:
        """`acceptance` decides which ended sessions are wanted for training; without it every one is."""
        self.config = config
        self.capacity = capacity
        self.secret = secret
        self.sampling = sampling
        self.acceptance = acceptance
        self.book = SessionBook(secret, kept=config.kept_sessions)
        self.pool = WorkerPool()
        self.open_calls = OpenCalls()
        self.caught_up = False
        """The log has been folded; before, names and places could be given twice."""
        self.started: dict[str, SessionStarted] = {}
        """Sessions that have not ended, by episode."""
        self.folded = OutsideFold(self.capacity)
        """What the log says of places and sessions: a snapshot holds that."""
        self.ending: set[str] = set()
        self.an_end = asyncio.Condition()
        self.exported = self.abandoned = 0

    # ---------------------------------------------------------------- what agents ask

    @on
    async def reserve_capacity(self, _: ReserveCapacity, turn: Turn) -> Emits[CapacityReserved]:
        if refused := self._closed():
            yield CapacityReserved(refused=refused)
        elif not self.capacity.reserve(turn.now, self.config.grant_seconds):
            yield CapacityReserved(refused=_full("no slot is free"))
        else:
            yield CapacityReserved(seconds=self.config.grant_seconds)

    @on
    async def start_session(self, request: StartSession, turn: Turn) -> Emits[Ending | SessionStarted | SessionGiven]:
        unfinished = self.book.live_session_of_key(request.api_key)
        if refused := self._refuses(request, unfinished):
            yield SessionGiven(refused=refused)
            return
        if unfinished is not None:
            async for said in self._end(unfinished, turn):
                yield said
        if (seat := self.capacity.next_seat(request.task)) is None:
            yield SessionGiven(refused=_full(f"no group is left for task '{request.task}'"))
            return
        self.capacity.take(seat, turn.now, reserved=True)
        work = RunEpisode(episode=seat.episode, group=str(seat.group), task=Task(id=request.task, data={}), sampling=self.sampling)
        lease = self.config.lease_seconds
        key = request.api_key or session_key(self.secret, f"outside {seat.session}")
        self.book.open(Session(id=seat.session, api_key=key, work=work, lease_seconds=lease, expires=turn.now + lease, outside=True))
        started = SessionStarted(session=seat.session, work=work, member=seat.member, index=seat.index, key=self.book.digest(key))
        self.started[work.episode] = started
        yield started
        yield SessionGiven(session=seat.session, api_key=key)

    def _refuses(self, request: StartSession, unfinished: Session | None) -> Refusal | None:
        size = self.capacity.group_size
        if closed := self._closed():
            return closed
        if request.group_size not in {0, size} and not self.capacity.slots:
            reason = f"'group_size' is {request.group_size}, but this run trains groups of {size}: send {size}, or leave it out"
            return Refusal(status=400, reason=reason, field="group_size")
        if unfinished is not None and not (request.replace and unfinished.outside and unfinished.id not in self.ending):
            reason = f"'api_key' opens session {unfinished.id}, which is unfinished: end it, or send \"replace\": true to end and export it"
            return Refusal(status=409, reason=reason, field="api_key")
        return None

    def _closed(self) -> Refusal | None:
        """Why nobody may start now."""
        if not self.capacity.group_size:
            reason = 'this run\'s own rollout workers run its episodes; for agents outside, set task.agent = "online" in the recipe'
            return Refusal(status=403, reason=reason)
        if not self.caught_up:
            return Refusal(status=503, reason="the gateway is reading the run's log; ask again", retry_after=SOON_SECONDS)
        return None

    @on
    async def end_session(self, request: EndSession, turn: Turn) -> Emits[Ending | SessionClosed]:
        session = self.book.find(request.session)
        if session is not None and not session.outside:
            self.book.update(session.after("end", turn.now))
        elif session is not None and session.id not in self.ending:
            async for said in self._end(session, turn):
                yield said
        if session is not None and (still := self.book.find(request.session)) is not None:
            yield SessionClosed(session=session.id, interactions=len(session.turns), state=still.state)
        elif (kept := self.book.kept(request.session)) is not None:
            yield SessionClosed(session=kept.id, interactions=kept.calls, state=kept.state, detail=kept.detail)
        else:
            yield SessionClosed(refused=self._unknown(request.session))

    @on
    async def describe_session(self, request: DescribeSession, turn: Turn) -> Emits[SessionDescribed]:
        if (session := self.book.find(request.session)) is not None:
            if request.by_agent:
                session = self.book.update(session.touched(turn.now))
            yield SessionDescribed(
                session=session.id,
                task=session.work.task.id,
                state=session.state,
                interactions=_told(session.interactions(), session.rewards),
                running=session.running,
                lease_seconds=session.lease_seconds,
                expires_in=session.expires - turn.now,
                engine_failure=session.engine_failure(),
                open_calls=self.open_calls.of(session.id, turn.now, self.pool.in_hand),
            )
        elif (kept := self.book.kept(request.session)) is not None:
            turns = kept.trajectory.interactions if kept.trajectory is not None else ()
            yield SessionDescribed(session=kept.id, task=kept.task, state=kept.state, detail=kept.detail, interactions=_told(turns, {}))
        else:
            yield SessionDescribed(refused=self._unknown(request.session), replaced_by=self.book.replaced_by(request.session))

    @on
    async def give_trajectory(self, request: GiveTrajectory, turn: Turn) -> Emits[TrajectoryGiven]:
        name = request.session
        if self.book.find(name) is not None and request.wait_seconds > 0:
            with turn.waiting(f"the end of session {name}", request.wait_seconds):
                await self._ended(name, request.wait_seconds)
        if (session := self.book.find(name)) is not None:
            reason = f"session {name} is {session.state}: end it first (POST /rl/end_session), or send wait_seconds to wait for its end"
            yield TrajectoryGiven(refused=Refusal(status=409, reason=reason, retry_after=SOON_SECONDS))
        elif (kept := self.book.kept(name)) is None:
            yield TrajectoryGiven(refused=self._unknown(name))
        elif kept.trajectory is None:
            yield TrajectoryGiven(refused=Refusal(status=410, reason=f"session {name} was abandoned: {kept.detail}"))
        else:
            yield TrajectoryGiven(session=name, trajectory=kept.trajectory)

    async def _ended(self, session: str, seconds: float) -> None:
        """Wait for the end of a session, but no longer than this."""
        try:
            async with asyncio.timeout(seconds), self.an_end:
                await self.an_end.wait_for(lambda: self.book.find(session) is None)
        except TimeoutError:
            return

    def _unknown(self, session: str) -> Refusal:
        if self.book.was(session):
            return Refusal(status=410, reason=f"session {session} is over, and nothing of it is kept any more (gateway.kept_sessions)")
        return Refusal(status=404, reason=f"there is no session '{session}'", field="session_id")

    # ---------------------------------------------------------------- how they end

    async def _end(self, session: Session, turn: Turn) -> AsyncIterator[Ending]:
        """Take no more calls, and say what became of the session; asked again after an interruption it goes on."""
        self.ending.add(session.id)
        try:
            session = self.book.update(session.after("end", turn.now))
            turns = apply_rewards(session.interactions(), None, session.rewards)
            said = outcome(session.work, turns, no_reward=NO_REWARD_OUTSIDE, engine_failure=session.engine_failure())
            if self.acceptance is not None and isinstance(said, TrajectoryExported):
                said = await self.acceptance.outcome(session.work, rewards=session.rewards) or said
            yield said
            await self.heard_end(said)
        finally:
            self.ending.discard(session.id)

    async def heard_end(self, said: Ending) -> None:
        """An episode was exported, or abandoned for good; heard again, it counts for nothing."""
        exported = said.trajectory if isinstance(said, TrajectoryExported) else None
        episode = exported.episode if exported is not None else said.work.episode if not isinstance(said, TrajectoryExported) else ""
        self.capacity.ended(episode)
        if (started := self.started.pop(episode, None)) is None:
            return
        live = self.book.find(started.session)
        self.book.keep(
            KeptSession(
                id=started.session,
                task=started.work.task.id,
                state="exported" if exported is not None else "abandoned",
                detail=said.detail if isinstance(said, EpisodeAbandoned) else "",
                calls=len(live.turns) if live is not None else len(exported.interactions) if exported is not None else 0,
                trajectory=exported,
            )
        )
        if live is not None:
            self.book.close(live, finished=True)
        self.exported += exported is not None
        self.abandoned += exported is None
        async with self.an_end:
            self.an_end.notify_all()

    async def overdue(self, turn: Turn) -> AsyncIterator[Ending]:
        """Say what time has ended: sessions that nobody uses, and members of groups that nobody started."""
        for session in self.book.expired(turn.now):
            if not session.outside or session.id in self.ending:
                continue
            if session.state == "ended":
                async for said in self._end(session, turn):
                    yield said
                continue
            lost = unused(session)
            yield lost
            await self.heard_end(lost)
        for seat in self.capacity.missing(turn.now, self.config.lease_seconds):
            work = RunEpisode(episode=seat.episode, group=str(seat.group), task=Task(id=seat.task, data={}), sampling=self.sampling)
            detail = f"nobody started it within {self.config.lease_seconds:g} s of the first session of its group (task '{seat.task}')"
            self.capacity.ended(seat.episode)
            yield EpisodeAbandoned(work=work, reason="lost", detail=detail)

    # ---------------------------------------------------------------- what the log says

    @on
    async def capacity_granted(self, event: CapacityGranted) -> None:
        for capacity in (self.capacity, self.folded.capacity):
            capacity.grant(event.first_group, event.groups)

    @on
    async def session_started(self, event: SessionStarted, turn: Turn) -> None:
        """Fold; of what this life has started itself it knows already."""
        self.folded.session_started(event, turn.now)
        if event.work.episode in self.started or self.book.is_finished(event.work.episode):
            return
        self.started[event.work.episode] = event
        self.capacity.take(seat_of(event), turn.now)
        self.book.remember(event.key, event.session)

    async def log_says_ended(self, said: Ending) -> None:
        """The log has the end of an episode."""
        exported = isinstance(said, TrajectoryExported)
        self.folded.ended(said.trajectory.episode if isinstance(said, TrajectoryExported) else said.work.episode, exported=exported)
        await self.heard_end(said)

    def restore_outside(self, state: OutsideState) -> None:
        """Begin with what a snapshot has of agents outside the run."""
        self.folded.restore(state)
        self.capacity.restore(state.capacity)
        self.started = dict(state.started)
        self.exported, self.abandoned = state.exported, state.abandoned
        for started in state.started.values():
            self.book.remember(started.key, started.session)

    @on
    async def actor_started(self, event: ActorStarted, turn: Turn) -> Emits[EpisodeAbandoned]:
        """The log's word of this gateway's own start comes after everything that was said before."""
        if turn.replayed or self.caught_up or event.actor.rpartition("-")[0] != self.kind() or event.pid != os.getpid():
            return
        self.caught_up = True
        for started in [started for started in self.started.values() if self.book.find(started.session) is None]:
            detail = f"the gateway was restarted, and the tokens of session {started.session} went with it"
            lost = EpisodeAbandoned(work=started.work, reason="session", detail=detail)
            yield lost
            await self.heard_end(lost)


def _full(reason: str) -> Refusal:
    return Refusal(status=429, reason=f"{reason}; ask again when sessions have ended and training has gone on", retry_after=LATER_SECONDS)


def _told(turns: Sequence[Interaction], rewards: dict[str, float]) -> tuple[InteractionTold, ...]:
    """Calls in numbers; `rewards` lie over their own."""
    lengths: dict[str, int] = {}
    told: list[InteractionTold] = []
    for turn in turns:
        prompt = lengths.get(turn.prefix, 0) + len(turn.prompt_suffix) // 4
        lengths[turn.id] = prompt + len(turn.completion)
        told.append(
            InteractionTold(
                id=turn.id,
                parent=turn.parent,
                prompt_tokens=prompt,
                completion_tokens=len(turn.completion),
                finish_reason=turn.finish_reason,
                reward=rewards.get(turn.id, turn.reward),
            )
        )
    return tuple(told)
