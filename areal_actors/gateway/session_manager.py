"""The session manager: keeps each episode's record of model calls, and exports it as a trajectory once it is scored.

Its gateway turns an agent's HTTP calls into the requests answered here. Tokens stay here until they are published once, in
`TrajectoryExported`; other messages carry only text and numbers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import structlog

from areal_actors.core.errors import EngineError, RequestError, SessionError, SetupError
from areal_actors.core.gateways import ONLY, GatewayShare
from areal_actors.core.settings import GatewaySettings
from areal_actors.core.values import SamplingParams
from areal_actors.gateway.chat_model import LoadTokenizer, load_served_model
from areal_actors.gateway.completion import ModelCall, ServedModel, complete, with_images_stored
from areal_actors.gateway.completion_check import CompletionFault, PublishedVersions
from areal_actors.gateway.external_sessions import ExternalSessions
from areal_actors.gateway.gateway_state import GatewayState
from areal_actors.gateway.image_intake import ImageIntake
from areal_actors.gateway.server import Gateway, LongWork
from areal_actors.gateway.session_routes import add_session_routes
from areal_actors.gateway.sessions.calls import (
    call_digest,
    completion_refused,
    digest_of,
    interaction_recorded,
    name_of,
    sampling_seed,
)
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.gateway.sessions.episode_end import EndingEvent, outcome
from areal_actors.gateway.sessions.keys import admin_key, session_key
from areal_actors.gateway.sessions.running_call import keep_overflow, running_call
from areal_actors.gateway.sessions.table import CLOSED_STATES, Session
from areal_actors.gateway.worker_pool import InFlightCall, NamedCalls
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    AgentReturned,
    CompletionRefused,
    DescribeGateway,
    EngineLost,
    EngineMismatch,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    GatewayDescribed,
    Generate,
    InteractionsRecorded,
    ModelRequest,
    ModelResponsePart,
    OpenSession,
    ReserveCapacity,
    RewardSet,
    SessionOpened,
    SetReward,
    StartSession,
    ToolsRefused,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.rewards.acceptance import Acceptance
from areal_actors.runtime.actor import Context, Emits, Submit, Tick, on
from areal_actors.vision.files import ImageFolder

logger = structlog.get_logger(__name__)


class SessionManager(ExternalSessions):
    """At most one session per episode is alive; an episode is exported at most once."""

    state_type = GatewayState
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
    ) -> None:
        """With `capacity`, external agents have sessions; paths in events are relative to `run_folder`, or found by `locate_model`."""
        capacity, sampling = capacity or ExternalCapacity(0), sampling or SamplingParams()
        super().__init__(config, capacity, secret=secret, sampling=sampling, acceptance=acceptance, share=share)
        self.load_tokenizer = load_tokenizer
        self.seed = seed
        self.run_folder, self.records_routes = run_folder, records_routes
        self.locate_model = locate_model
        self.images = ImageIntake(images or ImageFolder.of_run(run_folder), config.images)
        self.max_model_len, self.concurrency, self.serve_http = max_model_len, concurrency, serve_http
        self.published = PublishedVersions()
        self.refused: Counter[str] = Counter()
        """Completions refused since this gateway started, by worker."""
        self.model = ""
        """The folder of the model and its tokenizer, as in events."""
        self.served: ServedModel | None = None
        self.gateway: Gateway | None = None
        self.long_work = LongWork(2, "long-requests")
        self._in_progress = NamedCalls()
        self.leaving = False
        """True if no more sessions are opened."""

    def snapshot(self) -> GatewayState:
        """The state for a successor gateway."""
        return GatewayState(
            book=self.registry.snapshot(),
            outside=self.logged.snapshot(),
            model=self.model,
            published=self.published.newest,
            workers=dict(self.pool.versions),
        )

    def restore(self, state: GatewayState) -> None:
        """Restore the state of a predecessor."""
        self.registry.restore(state.book)
        self.restore_external(state.outside)
        self.published.newest = state.published
        for worker, version in state.workers.items():
            self.pool.record_load(worker, version)
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
            routes = partial(add_session_routes, admin_key=admin, open_metrics=self.config.is_local(), own_address=self.share.count > 1)
            self.gateway = Gateway(self.config, submit, self.registry.session_of_key, routes, self.long_work)
            await self.gateway.start()

    async def finish(self) -> None:
        """Open no more sessions, and wait until those that are open have ended."""
        self.leaving = True
        while len(self.registry):  # noqa: ASYNC110 - sessions end in many ways
            await asyncio.sleep(self.tick_seconds)

    def reconnected(self) -> None:
        """Continue all calls in flight on any worker: parts of their answers may be lost."""
        self.pool.interrupt_all()

    async def drain(self) -> None:
        """Let in-flight calls finish, and accept no new ones."""
        if self.gateway is not None:
            await self.gateway.stop()

    async def stop(self) -> None:
        """Stop serving."""
        await self.drain()
        self.long_work.shutdown(wait=False, cancel_futures=True)

    @on
    def open_session(self, request: OpenSession, context: Context) -> Iterator[SessionOpened]:
        work, gateways = request.work, self.share.count
        if self.leaving or not self.share.owns_group(work.group):
            yield SessionOpened(gateways=gateways, leaving=self.leaving)
            return
        if refused := self.registry.refusal(work):
            yield SessionOpened(refused=refused, gateways=gateways)
            return
        name = self.share.mark(f"{work.episode}-{work.attempt}-{context.cause[:8]}")
        key = self.share.mark(session_key(self.secret, name))
        session = Session(id=name, api_key=key, work=work, lease_seconds=request.lease_seconds, expires=context.now + request.lease_seconds)
        self.registry.open(session)
        root = self.gateway.root if self.gateway else "http://gateway"
        version = self.pool.newest_version
        yield SessionOpened(session=name, base_url=f"{root}/{name}/v1", api_key=key, weight_version=version, gateways=gateways)

    @on
    async def model_request(self, request: ModelRequest, context: Context) -> Emits[ModelResponsePart | CompletionRefused]:
        try:
            request = await with_images_stored(request, self.images, self.served)
            name = name_of(request)
            in_turn = (
                self._in_progress.alone(request.session, name, context, self.registry.get(request.session).lease_seconds)
                if name
                else nullcontext()
            )
            with self.open_calls.track(request.session, context.now) as in_flight:
                async with in_turn:
                    session = self.registry.get(request.session)
                    if again := session.answered.get(name):
                        for part in again:
                            yield part
                        return
                    with running_call(self.registry, session, context) as session:
                        try:
                            async for answer in self._answer(session, request, name, context, in_flight):
                                yield answer
                        except EngineError as error:
                            for refused in self._record_failure(session, request, error):
                                yield refused
                            raise
        except RequestError as error:
            keep_overflow(self.registry, request, error)
            yield ModelResponsePart(error=str(error), error_status=400, error_field=error.field, error_code=error.code)
        except SessionError as error:
            yield ModelResponsePart(error=str(error), error_status=410)
        except (EngineError, SetupError) as error:
            yield ModelResponsePart(error=str(error), error_status=503)

    def _record_failure(self, session: Session, request: ModelRequest, error: EngineError) -> Iterator[CompletionRefused]:
        """Record the unanswered request, and report the worker that failed."""
        if (now := self.registry.find(session.id)) is not None:
            self.registry.update(now.engine_failed(digest_of(request), str(error)))
        if isinstance(error, CompletionFault):
            self.refused[error.worker] += 1
            yield completion_refused(session, error)

    async def _answer(
        self, session: Session, request: ModelRequest, name: str, context: Context, in_flight: InFlightCall
    ) -> AsyncIterator[ModelResponsePart]:
        """Stream the answer, record all choices as interactions or none, and only then yield the last parts."""
        if self.served is None:
            raise EngineError("the gateway has no tokenizer yet: no weights have been published")
        call = await self.long_work.run(request.body_bytes, ModelCall, session, request, self.served, in_flight)
        if request.count_only:
            yield ModelResponsePart(prompt_tokens=call.prompt_tokens, last=True)
            return
        digest = call_digest(call.prompt.token_ids, call.sampling)
        session = self.registry.update(self.registry.get(request.session).count_call(digest))
        trained = request.store or self.config.store_false == "train"
        try:
            async for part in complete(call, self.pool, context, session.lease_seconds, sampling_seed(self.seed, session, digest)):
                yield part
        except (asyncio.CancelledError, GeneratorExit):
            if request.stream:
                self._keep_cancelled(session.id, call, context, trained=trained)
            raise
        for answer in self._record_call(session.id, call, name, context, trained=trained):
            yield answer

    def _record_call(self, session_id: str, call: ModelCall, name: str, context: Context, *, trained: bool) -> Iterator[ModelResponsePart]:
        """Record a completed call; yields the last parts of its answer."""
        ended = [choice.finish(last=choice is call.choices[-1], trained=trained) for choice in call.choices]
        session = self.registry.get(session_id)
        for _, done in ended:
            session = session.record(done, context.now, call.request.client_session, call.links)
        if session.unanswered:
            session = session.engine_answered(digest_of(call.request))
        self.registry.update(session.with_answer(name, [choice.whole for choice in call.choices]) if name else session)
        for choice, (_, done) in zip(call.choices, ended, strict=True):
            self.unreported.add(interaction_recorded(session, choice, done, context, call.links.found))
        for parts, _ in ended:
            yield from parts

    def _keep_cancelled(self, name: str, call: ModelCall, context: Context, *, trained: bool) -> None:
        """Record the streamed part of a cancelled call: the next call of the conversation may continue it."""
        for choice in call.choices:
            if choice.sampled and (session := self.registry.find(name)) is not None and session.state == "active":
                done = choice.finish_cancelled(trained=trained)
                session = self.registry.update(session.record(done, context.now, call.request.client_session, call.links))
                self.unreported.add(interaction_recorded(session, choice, done, context, call.links.found))

    @on
    def set_reward(self, request: SetReward, context: Context) -> Iterator[RewardSet]:
        try:
            self.registry.update(
                self.registry.get(request.session).set_reward(request.interaction, request.reward, context.now, request.role)
            )
        except SessionError as error:
            session = self.registry.find(request.session)
            yield RewardSet(error=str(error), error_status=410 if session is None or session.state in CLOSED_STATES else 404)
            return
        yield RewardSet()

    @on
    def episode_scored(self, event: EpisodeScored, context: Context) -> Iterator[EndingEvent]:
        if not self.share.owns_group(event.work.group):
            return
        session = self.registry.find(event.session)
        if session is None:
            if not self.registry.is_superseded(event.work):
                yield EpisodeAbandoned(work=event.work, reason="session", detail="the gateway lost the session before it was scored")
            return
        if self.registry.is_finished(session.work.episode):
            self.registry.close(session)
            return
        session = self.registry.update(session.transition("score", context.now))
        ending = outcome(session, event)
        if abandoned := isinstance(ending, EpisodeAbandoned):
            self.registry.close(session)
        yield from self.unreported.with_end(session.id, ending)
        if not abandoned:
            self.registry.close(session, finished=True)

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned, context: Context) -> None:
        self.registry.mark_abandoned(event.work)
        await self.fold_end(event, context.now)

    @on
    async def trajectory_exported(self, event: TrajectoryExported, context: Context) -> None:
        self.registry.mark_finished(event.trajectory.episode)
        await self.fold_end(event, context.now)

    @on
    def episode_evaluated(self, event: EpisodeEvaluated) -> None:
        self.registry.mark_finished(event.work.episode)

    @on
    def agent_returned(self, returned: AgentReturned) -> Iterator[InteractionsRecorded]:
        """The reward worker may abandon it: its calls are reported before."""
        if (session := self.registry.find(returned.session)) is not None:
            self.registry.update(session.agent_returned())
            yield from self.unreported.of(session.id)

    @on
    async def tick(self, tick: Tick, context: Context) -> Emits[EndingEvent]:
        self.open_calls.timestamp_left(context.now)
        for recorded in self.unreported.all():
            yield recorded
        async for ending in self.end_expired(context, tick.paused):
            yield ending

    @on
    async def weights_published(self, event: WeightsPublished) -> Emits[ToolsRefused]:
        is_first = self.served is None
        if is_first and self.locate_model is not None:
            await asyncio.to_thread(self.locate_model, event.location.model)
        self._load_chat(event.location.model)
        await self.published.publish(event.weight_version)
        if is_first and self.share.number == 0 and self.served is not None and (error := self.served.tools.error):
            logger.warning("requests with tools are refused", model=self.model, reason=error)
            yield ToolsRefused(model=self.model, format=self.served.tools.format, reason=error)

    def _load_chat(self, model: str) -> None:
        if self.served is None:
            self.model, folder = model, str((self.locate_model or self.run_folder.joinpath)(model))
            trains = not self.slots.capacity.slots
            limits = self.config, self.published, self.max_model_len
            self.served = load_served_model(self.load_tokenizer, folder, *limits, trains=trains, records_routes=self.records_routes)

    @on
    def weights_loaded(self, event: WeightsLoaded) -> None:
        self.pool.record_load(event.worker, event.weight_version)

    @on
    def engine_mismatch(self, event: EngineMismatch) -> None:
        """A worker that recycles its engine is gone until it has loaded weights again; others continue its in-flight calls."""
        for worker in ([event.worker] if event.worker else list(self.pool.versions)) if event.recycle else ():
            self.pool.remove_lost(worker)

    @on
    async def worker_gone(self, event: EngineLost | ActorFailed | ActorStopped, context: Context) -> Emits[EpisodeAbandoned]:
        """A worker that is gone, or whose server is, is gone until it has loaded weights again; sessions of another gateway are lost."""
        self.pool.remove_lost(event.worker if isinstance(event, EngineLost) else event.actor)
        if isinstance(event, ActorFailed):
            async for lost in self.gateway_gone(event, context):
                yield lost

    @on
    def describe_gateway(self, _: DescribeGateway, context: Context) -> Iterator[GatewayDescribed]:
        ready = {"the run's log": self.caught_up, "weights": self.served is not None, "an inference worker": bool(self.pool.versions)}
        yield GatewayDescribed(
            missing=", ".join(name for name in ready if not ready[name]),
            sessions=self.registry.count_by_state(),
            **(self.slots.counts(context.now) if self.share.number == 0 else {}),
            in_hand=self.pool.in_flight,
            refused_completions=dict(self.refused),
        )

    def status(self) -> dict[str, float | str]:
        """Open sessions, and in-flight and refused completions by inference worker."""
        in_flight = {f"in flight of {worker}": count for worker, count in self.pool.in_flight.items()}
        refused = {f"refused of {worker}": count for worker, count in self.refused.items()}
        waits = self.slots.describe_waits() if self.share.number == 0 else ""
        return {"sessions": len(self.registry), **in_flight, **refused, **({"groups": waits} if waits else {})}
