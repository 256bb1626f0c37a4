"""The session manager: keeps each episode's record of model calls, and exports it as a trajectory once it is scored.

Its gateway turns an agent's HTTP calls into the requests answered here. Tokens stay here until they are published once,
in `TrajectoryExported`, or in `ConversationKept` if nothing trains them; other messages carry only text and numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import structlog

from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.core.gateways import ONLY, GatewayShare
from areal_actors.core.values import SamplingParams
from areal_actors.gateway.chat_model import LoadTokenizer, load_served_model
from areal_actors.gateway.completion_check import PublishedVersions
from areal_actors.gateway.external_sessions import ExternalSessions
from areal_actors.gateway.gateway_state import GatewayState
from areal_actors.gateway.gateway_status import describe_gateway, gateway_status
from areal_actors.gateway.image_intake import ImageIntake
from areal_actors.gateway.model_calls import ModelCalls
from areal_actors.gateway.server import Gateway
from areal_actors.gateway.session_ends import SessionEnds
from areal_actors.gateway.session_routes import AddRoutes, add_session_routes
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.gateway.sessions.episode_end import EndingEvent
from areal_actors.gateway.sessions.kept_conversations import ConversationEvent
from areal_actors.gateway.sessions.keys import admin_key, session_key
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.gateway.sessions.table import Session
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    AgentReturned,
    CapacityGranted,
    CapacityReserved,
    CompletionRefused,
    DescribeGateway,
    DescribeSession,
    EndSession,
    EngineLost,
    EngineMismatch,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    GatewayDescribed,
    Generate,
    GetInteraction,
    GetTrajectory,
    InteractionsRecorded,
    InteractionTokens,
    ModelRequest,
    ModelResponsePart,
    OpenSession,
    ReserveCapacity,
    RewardSet,
    SelectTrained,
    SessionClosed,
    SessionCreated,
    SessionDescribed,
    SessionOpened,
    SessionStarted,
    SetReward,
    StartSession,
    ToolsRefused,
    TrainedSelected,
    TrajectoryExported,
    TrajectoryReply,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.rewards.acceptance import Acceptance
from areal_actors.runtime.actor import Actor, Context, Emits, Submit, Tick, on
from areal_actors.vision.files import ImageFolder

logger = structlog.get_logger(__name__)


class SessionManager(Actor):
    """At most one session per episode is alive; an episode is exported at most once."""

    state_type = GatewayState
    trains_calls = True
    """False if its weights are not trained, so that calls may have any temperature."""
    asks = (Generate, StartSession, ReserveCapacity)
    tick_seconds = 1.0

    def __init__(
        self,
        config: GatewaySettings,
        load_tokenizer: LoadTokenizer,
        *,
        secret: bytes,
        max_model_len: int,
        concurrency: int = 256,
        serve_http: bool = True,
        capacity: ExternalCapacity | None = None,
        sampling: SamplingParams | None = None,
        acceptance: Acceptance | None = None,
        seed: int = 0,
        run_folder: Path = Path(),
        records_routes: bool = False,
        share: GatewayShare = ONLY,
        locate_model: Callable[[str], Path] | None = None,
        images: ImageFolder | None = None,
        add_routes: AddRoutes | None = None,
        conversations: ConversationSettings | None = None,
    ) -> None:
        """With `capacity`, external agents have sessions; `locate_model` finds paths that are not in `run_folder`."""
        capacity, sampling = capacity or ExternalCapacity(0), sampling or SamplingParams()
        self.config, self.secret, self.share = config, secret, share
        self.registry = SessionRegistry(secret, kept=config.finished_sessions_cached, share=share)
        self.images = ImageIntake(images or ImageFolder.of_run(run_folder), config.images)
        self.calls = ModelCalls(config, self.registry, self.images, seed=seed)
        self.ends = SessionEnds(self.calls, share, conversations)
        self.external = ExternalSessions(
            config, capacity, self.ends, secret=secret, sampling=sampling, acceptance=acceptance, share=share
        )
        self.load_tokenizer = load_tokenizer
        self.run_folder, self.records_routes = run_folder, records_routes
        self.locate_model = locate_model
        self.max_model_len, self.concurrency, self.serve_http = max_model_len, concurrency, serve_http
        self.add_routes = add_routes
        self.published = PublishedVersions()
        self.model = ""
        """The folder of the model and its tokenizer, as in events."""
        self.gateway: Gateway | None = None
        self.leaving = False  # True if no more sessions are opened

    def snapshot(self) -> GatewayState:
        """The state for a successor gateway."""
        return GatewayState(
            book=self.registry.snapshot(),
            outside=self.external.logged.snapshot(),
            model=self.model,
            published=self.published.newest,
            workers=dict(self.calls.pool.versions),
            conversations=self.ends.conversations.logged,
        )

    def restore(self, state: GatewayState) -> None:
        """Restore the state of a predecessor."""
        self.registry.restore(state.book)
        self.external.restore(state.outside)
        self.published.newest, self.ends.conversations.logged = state.published, state.conversations
        for worker, version in state.workers.items():
            self.calls.pool.record_load(worker, version)
        self.model = state.model
        if state.model and self.locate_model is None:
            self._load_chat(state.model)

    async def start(self, submit: Submit) -> None:
        """Serve the gateway; one of another host that goes on from a snapshot first has its model pulled."""
        if self.model and self.locate_model is not None:
            await asyncio.to_thread(self.locate_model, self.model)
            self._load_chat(self.model)
        if self.serve_http:
            admin = admin_key(self.secret, self.config.admin_key)
            routes = partial(
                add_session_routes,
                admin_key=admin,
                open_metrics=self.config.is_local(),
                own_address=self.share.count > 1,
            )
            added = [routes, *([partial(self.add_routes, self.registry)] if self.add_routes else [])]
            self.gateway = Gateway(self.config, submit, self.registry.session_of_key, added, self.calls.long_work)
            await self.gateway.start()

    async def finish(self) -> None:
        """Open no more sessions, and wait until those that are open have ended."""
        self.leaving = True
        while len(self.registry):  # noqa: ASYNC110 - sessions end in many ways
            await asyncio.sleep(self.tick_seconds)

    def reconnected(self) -> None:
        """Continue all calls in flight on any worker: parts of their answers may be lost."""
        self.calls.pool.interrupt_all()

    async def drain(self) -> None:
        """Let in-flight calls finish, and accept no new ones."""
        if self.gateway is not None:
            await self.gateway.stop()

    async def stop(self) -> None:
        """Stop serving."""
        await self.drain()
        self.calls.long_work.shutdown(wait=False, cancel_futures=True)

    @on
    def open_session(self, request: OpenSession, context: Context) -> Iterator[SessionOpened | ConversationEvent]:
        work, gateways = request.work, self.share.count
        if self.leaving or not self.share.owns_group(work.group):
            yield SessionOpened(gateways=gateways, leaving=self.leaving)
            return
        if refused := self.registry.rejection_reason(work):
            yield SessionOpened(refused=refused, gateways=gateways)
            return
        name = self.share.mark(f"{work.episode}-{work.attempt}-{context.cause[:8]}")
        key = self.share.mark(session_key(self.secret, name))
        session = Session(
            id=name,
            api_key=key,
            work=work,
            lease_seconds=request.lease_seconds,
            expires=context.now + request.lease_seconds,
        )
        kept = list(self.ends.replace(session))
        root = self.gateway.root if self.gateway else "http://gateway"
        version = self.calls.pool.newest_version
        yield SessionOpened(
            session=name, base_url=f"{root}/{name}/v1", api_key=key, weight_version=version, gateways=gateways
        )
        yield from kept

    @on
    def model_request(self, request: ModelRequest, context: Context) -> Emits[ModelResponsePart | CompletionRefused]:
        return self.calls.answer(request, context)

    # ---------------------------------------------------------------- requests of agents about their sessions

    @on
    def reserve_capacity(self, request: ReserveCapacity, context: Context) -> Emits[CapacityReserved]:
        return self.external.reserve_capacity(request, context)

    @on
    def start_session(
        self, request: StartSession, context: Context
    ) -> Emits[EndingEvent | ConversationEvent | SessionStarted | SessionCreated]:
        return self.external.start_session(request, context)

    @on
    def end_session(
        self, request: EndSession, context: Context
    ) -> Emits[EndingEvent | ConversationEvent | SessionClosed]:
        return self.external.end_session(request, context)

    @on
    def get_trajectory(self, request: GetTrajectory, context: Context) -> Emits[TrajectoryReply]:
        return self.external.get_trajectory(request, context)

    @on
    def describe_session(
        self, request: DescribeSession, context: Context
    ) -> Iterator[InteractionsRecorded | SessionDescribed]:
        return self.external.requests.describe_session(request, context)

    @on
    def get_interaction(self, request: GetInteraction, context: Context) -> Iterator[InteractionTokens]:
        return self.external.requests.get_interaction(request, context)

    @on
    def select_trained(self, request: SelectTrained, context: Context) -> Iterator[TrainedSelected]:
        return self.external.requests.select_trained(request, context)

    @on
    def capacity_granted(self, event: CapacityGranted) -> None:
        self.external.capacity_granted(event)

    @on
    async def session_started(self, event: SessionStarted, context: Context) -> None:
        await self.external.session_started(event, context)

    @on
    async def actor_started(self, event: ActorStarted, context: Context) -> Emits[EpisodeAbandoned]:
        async for lost in self.external.actor_started(event, context):
            yield lost

    # ---------------------------------------------------------------- ends of episodes

    @on
    def set_reward(self, request: SetReward, context: Context) -> Iterator[RewardSet]:
        return self.external.requests.set_reward(request, context)

    @on
    def episode_scored(self, event: EpisodeScored, context: Context) -> Iterator[EndingEvent | ConversationEvent]:
        return self.ends.score(event, context.now)

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned, context: Context) -> Emits[ConversationEvent]:
        kept = [] if self.external.is_ending(event) else list(self.ends.abandon(event))
        await self.external.fold_end(event, context.now)
        for conversation in kept:
            yield conversation

    @on
    def conversation_kept(self, event: ConversationEvent) -> None:
        self.ends.conversations.fold(event)

    @on
    async def trajectory_exported(self, event: TrajectoryExported, context: Context) -> None:
        self.registry.mark_finished(event.trajectory.episode)
        await self.external.fold_end(event, context.now)

    @on
    def episode_evaluated(self, event: EpisodeEvaluated) -> None:
        self.registry.mark_finished(event.work.episode)

    @on
    def agent_returned(self, returned: AgentReturned) -> Iterator[InteractionsRecorded]:
        """The reward worker may abandon it: its calls are reported before."""
        if (session := self.registry.find(returned.session)) is not None:
            self.registry.update(session.agent_returned())
            yield from self.calls.unreported.of(session.id)

    @on
    async def tick(self, tick: Tick, context: Context) -> Emits[EndingEvent | ConversationEvent]:
        self.calls.open_calls.timestamp_left(context.now)
        self.calls.forget_ended()
        for recorded in self.calls.unreported.all():
            yield recorded
        async for ending in self.external.end_expired(context, tick.paused):
            yield ending

    @on
    async def weights_published(self, event: WeightsPublished) -> Emits[ToolsRefused]:
        is_first = self.calls.served is None
        if is_first and self.locate_model is not None:
            await asyncio.to_thread(self.locate_model, event.location.model)
        self._load_chat(event.location.model)
        await self.published.publish(event.weight_version)
        if (
            is_first
            and self.share.number == 0
            and self.calls.served is not None
            and (error := self.calls.served.tools.error)
        ):
            logger.warning("requests with tools are refused", model=self.model, reason=error)
            yield ToolsRefused(model=self.model, format=self.calls.served.tools.format, reason=error)

    def _load_chat(self, model: str) -> None:
        if self.calls.served is None:
            self.model, folder = model, str((self.locate_model or self.run_folder.joinpath)(model))
            trains = self.trains_calls and not self.external.slots.capacity.slots
            limits = self.config, self.published, self.max_model_len
            self.calls.served = load_served_model(
                self.load_tokenizer, folder, *limits, trains=trains, records_routes=self.records_routes
            )

    @on
    def weights_loaded(self, event: WeightsLoaded) -> None:
        self.calls.pool.record_load(event.worker, event.weight_version)

    @on
    def engine_mismatch(self, event: EngineMismatch) -> None:
        """A worker that recycles its engine is gone until it has loaded weights; others continue its calls."""
        for worker in ([event.worker] if event.worker else list(self.calls.pool.versions)) if event.recycle else ():
            self.calls.pool.remove_lost(worker)

    @on
    async def worker_gone(
        self, event: EngineLost | ActorFailed | ActorStopped, context: Context
    ) -> Emits[EpisodeAbandoned]:
        """A worker or server that is gone returns with loaded weights; sessions of a lost gateway are abandoned."""
        self.calls.pool.remove_lost(event.worker if isinstance(event, EngineLost) else event.actor)
        if isinstance(event, ActorFailed):
            async for lost in self.external.gateway_gone(event, context):
                yield lost

    @on
    def describe_gateway(self, _: DescribeGateway, context: Context) -> Iterator[GatewayDescribed]:
        yield describe_gateway(self.external, context.now)

    def status(self) -> dict[str, float | str]:
        """Open sessions, and in-flight and refused completions by inference worker."""
        return gateway_status(self.external)
