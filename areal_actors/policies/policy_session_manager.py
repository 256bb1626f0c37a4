"""The session manager of a policy: its sessions are opened and ended by the episodes of another run.

The other run's gateway opens a session for an episode whose agent calls the policy. Ends are read from the other run's
log: what has a trajectory there is scored here, what was abandoned there is abandoned here. A restarted manager reads
that log again and leaves out what its own log has the end of, so that each episode ends once in both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import structlog

from areal_actors.core.policy_settings import PolicyRole
from areal_actors.gateway.gateway_state import GatewayState
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.episode_end import EndingEvent
from areal_actors.gateway.sessions.kept_conversations import ConversationEvent
from areal_actors.gateway.sessions.keys import session_key
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import (
    ActorStarted,
    CapacityGranted,
    EndPolicySession,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    OpenPolicySession,
    RunEpisode,
    SessionClosed,
    SessionOpened,
    TrajectoryExported,
    WeightsLoaded,
)
from areal_actors.messages.episode_ends import UNUSED, EpisodeSet
from areal_actors.policies.episode_endings import EpisodeEndings
from areal_actors.policies.policy_reward import policy_reward
from areal_actors.runtime.actor import Context, Emits, Submit, Tick, on
from areal_bus.base import Envelope
from areal_bus.errors import BusError

FOLLOW_AGAIN_SECONDS = 1.0
"""Pause before the other run is followed again after an error of the bus."""
logger = structlog.get_logger(__name__)

FollowRun = Callable[[], AsyncGenerator[Envelope, None]]
"""Reads the log of the run whose agents call the policy, from its first event on, and follows it until cancelled."""


class PolicyGatewayState(GatewayState):
    """Snapshot of the session manager of a policy."""

    ended: EpisodeSet = msgspec.field(default_factory=EpisodeSet)
    granted: int = 0


class PolicySessionManager(SessionManager):
    """An episode is trained here if its agent called the policy, and once, whatever is killed."""

    state_type = PolicyGatewayState

    def __init__(
        self,
        *arguments: Any,
        role: PolicyRole,
        follow_run: FollowRun,
        group_size: int,
        lease_seconds: float,
        waits_for_grants: bool,
        **options: Any,
    ) -> None:
        """`arguments` and `options` are those of every session manager.

        Without `waits_for_grants`, as for weights that are not trained, sessions are opened at once.
        """
        super().__init__(*arguments, **options)
        self.role, self.follow_run = role, follow_run
        self.group_size, self.lease_seconds = group_size, lease_seconds
        self.waits_for_grants = self.trains_calls = waits_for_grants
        self.ended = EpisodeSet()
        self.granted = 0
        """Number of groups that the staleness gate of the policy has let start."""
        self.changed = asyncio.Condition()
        """Notified when more groups are granted, and when weights are loaded."""
        self.opened: set[str] = set()
        """Episodes with a session since this process began, until they end."""
        self.predecessors = 0
        self.known_from = 0
        """First group of which this process knows all sessions: those before may have had one in a predecessor."""
        self._caught_up = asyncio.Event()
        """Set once the policy's own log has been folded: before that, ends would be repeated."""
        self._following: asyncio.Task[None] | None = None

    @classmethod
    def kind(cls) -> str:
        """Returns the name of every session manager."""
        return SessionManager.kind()

    def snapshot(self) -> PolicyGatewayState:
        """The state for a successor gateway."""
        state = super().snapshot()
        fields = {name: getattr(state, name) for name in state.__struct_fields__}
        return PolicyGatewayState(**fields, ended=self.ended, granted=self.granted)

    def restore(self, state: GatewayState) -> None:
        """Restore the state of a predecessor."""
        super().restore(state)
        if isinstance(state, PolicyGatewayState):
            self.ended, self.granted = state.ended, state.granted
            self.predecessors = 1

    async def start(self, submit: Submit) -> None:
        """Serve the gateway, and follow the run whose agents call the policy."""
        await super().start(submit)
        self._following = asyncio.create_task(self._follow(submit))

    async def stop(self) -> None:
        """Stop serving, and following."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await super().stop()

    async def _follow(self, submit: Submit) -> None:
        await self._caught_up.wait()
        while True:
            try:
                await self._end_sessions(submit)
            except BusError as error:
                logger.warning("the run is followed again", run=self.role.run, reason=str(error))
            await asyncio.sleep(FOLLOW_AGAIN_SECONDS)

    async def _end_sessions(self, submit: Submit) -> None:
        """End a session for each end of an attempt in the other run.

        The staleness gate counts the ends of groups that it has let start, so the end of an episode of a later group,
        in which the policy was not called, waits until then.
        """
        endings, early = EpisodeEndings(), list[EndPolicySession]()
        ending_early = asyncio.create_task(self._end_early(early, submit))
        try:
            async with aclosing(self.follow_run()) as events:
                async for envelope in events:
                    if ending_early.done():
                        ending_early.result()
                    if (end := endings.receive(envelope)) is None:
                        continue
                    if self._is_granted(end.work):
                        await _submit_end(end, submit)
                    else:
                        early.append(end)
        finally:
            ending_early.cancel()
            await asyncio.gather(ending_early, return_exceptions=True)

    async def _end_early(self, early: list[EndPolicySession], submit: Submit) -> None:
        """End the episodes of groups that the staleness gate had not let start, once it does."""
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda: any(self._is_granted(end.work) for end in early))
            granted = [end for end in early if self._is_granted(end.work)]
            early[:] = [end for end in early if not self._is_granted(end.work)]
            for end in granted:
                await _submit_end(end, submit)

    def _is_granted(self, work: RunEpisode) -> bool:
        return not self.waits_for_grants or not work.group.isdecimal() or self.granted > int(work.group)

    # ---------------------------------------------------------------- requests of the other run

    @on
    async def open_policy_session(
        self, request: OpenPolicySession, context: Context
    ) -> Emits[ConversationEvent | SessionOpened]:
        work = request.work
        if work.purpose == "train":
            work = msgspec.structs.replace(work, sampling=self.external.sampling)
        if refused := await self._opening_refusal(work, context) or self.registry.rejection_reason(work):
            yield SessionOpened(refused=refused)
            return
        key = session_key(self.secret, request.session)
        if self.registry.find(request.session) is None:
            session = Session(
                id=request.session,
                api_key=key,
                work=work,
                lease_seconds=self.lease_seconds,
                expires=context.now + self.lease_seconds,
            )
            for kept in self.ends.replace(session):
                yield kept
            self.opened.add(work.episode)
        yield SessionOpened(session=request.session, api_key=key)

    async def _opening_refusal(self, work: RunEpisode, context: Context) -> str:
        """Wait until the policy answers, and its staleness gate lets the group start; the reason if not in time."""
        name, seconds = f"policies.{self.role.name}.start_seconds", self.role.settings.start_seconds
        try:
            with context.waiting(f"policy '{self.role.name}' to take group {work.group}", seconds):
                async with asyncio.timeout(seconds), self.changed:
                    await self.changed.wait_for(lambda: not self._missing(work))
        except TimeoutError:
            return f"policy '{self.role.name}' {self._missing(work)} within {name} = {seconds:g} s"
        return ""

    def _missing(self, work: RunEpisode) -> str:
        """The condition that the session of an episode waits for; empty if it can be opened."""
        if self.calls.served is None or self.calls.pool.newest_version < 0:
            return "has not loaded its weights"
        if self._is_granted(work):
            return ""
        return f"is {int(work.group) + 1 - self.granted} groups behind, whose training has not made room"

    @on
    def end_policy_session(
        self, request: EndPolicySession, context: Context
    ) -> Iterator[EndingEvent | ConversationEvent | SessionClosed]:
        work = request.work
        if not self.ended.has(work.episode):
            yield from self._end_attempt(request, context)
        yield SessionClosed(session=work.episode)

    def _end_attempt(self, request: EndPolicySession, context: Context) -> Iterator[EndingEvent | ConversationEvent]:
        session = self.registry.session_of_episode(request.work.episode)
        if request.reward is None:
            yield from self.calls.unreported.of(session.id) if session is not None else ()
            yield EpisodeAbandoned(work=request.work, reason=request.reason, detail=request.detail)
        elif session is None:
            yield self._end_without_session(request.work)
        elif (reward := policy_reward(self.role.settings.reward, request.reward, request.metrics)) is None:
            lacking = f"the reward of the episode has no {self.role.settings.reward} (policies.{self.role.name}.reward)"
            yield EpisodeAbandoned(work=_last_attempt(session.work), reason="reward", detail=lacking)
        else:
            session = self.registry.update(_with_last_attempt(session))
            scored = EpisodeScored(
                work=session.work,
                session=session.id,
                reward=reward,
                metrics=request.metrics,
                output=request.output,
                ended_by=request.ended_by,
                end_cause=request.end_cause,
            )
            yield from self.episode_scored(scored, context)

    def _end_without_session(self, work: RunEpisode) -> EpisodeAbandoned:
        name, unused = f"policy '{self.role.name}'", f"no call of the episode went to policy '{self.role.name}'"
        if work.episode in self.opened:
            return EpisodeAbandoned(work=work, reason="session", detail=f"the session of {name} expired or was lost")
        if work.group.isdecimal() and int(work.group) < self.known_from:
            lost = f"{unused}, or its session was lost with an earlier process of the gateway"
            return EpisodeAbandoned(work=work, reason="session", detail=lost)
        return EpisodeAbandoned(work=work, reason=UNUSED, detail=unused)

    # ---------------------------------------------------------------- events of the policy's own log

    @on
    async def actor_started(self, event: ActorStarted, context: Context) -> Emits[EpisodeAbandoned]:
        async for lost in super().actor_started(event, context):
            yield lost
        if self.external.caught_up and not self._caught_up.is_set():
            self.known_from = self.granted if self.predecessors else 0
            self._caught_up.set()
        self.predecessors += event.actor.rpartition("-")[0] == self.kind()

    @on
    async def tick(self, tick: Tick, context: Context) -> Emits[EndingEvent | ConversationEvent]:
        if self._following is not None and self._following.done():
            self._following.result()  # its error is that of the actor
        async for ending in super().tick(tick, context):
            yield ending

    @on
    async def capacity_granted(self, event: CapacityGranted) -> None:  # type: ignore[override]
        self.granted = max(self.granted, event.first_group + event.groups)
        async with self.changed:
            self.changed.notify_all()

    @on
    async def weights_loaded(self, event: WeightsLoaded) -> None:  # type: ignore[override]
        super().weights_loaded(event)
        async with self.changed:
            self.changed.notify_all()

    @on
    async def trajectory_exported(self, event: TrajectoryExported, context: Context) -> None:
        await super().trajectory_exported(event, context)
        self._record_end(event.trajectory.episode)

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned, context: Context) -> Emits[ConversationEvent]:
        async for kept in super().episode_abandoned(event, context):
            yield kept
        if event.work.attempts_left == 0:
            self._record_end(event.work.episode)

    @on
    def episode_evaluated(self, event: EpisodeEvaluated) -> None:
        super().episode_evaluated(event)
        self._record_end(event.work.episode)

    def _record_end(self, episode: str) -> None:
        self.ended.add(episode, self.group_size)
        self.opened.discard(episode)


async def _submit_end(end: EndPolicySession, submit: Submit) -> None:
    async with aclosing(submit(end)) as replies:
        await anext(replies)


def _last_attempt(work: RunEpisode) -> RunEpisode:
    """Returns an attempt after which no other follows: the other run has ended the episode."""
    return msgspec.structs.replace(work, attempts_left=0)


def _with_last_attempt(session: Session) -> Session:
    return msgspec.structs.replace(session, work=_last_attempt(session.work))
