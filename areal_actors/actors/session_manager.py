"""The session manager: keeps each episode's record of model calls, and exports it as a trajectory once it is scored.

Its gateway turns an agent's HTTP calls into the questions answered here. The tokens stay here until they leave once, as
`TrajectoryExported`; only text and numbers travel in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from areal_actors.actor import Emits, Submit, Tick, Turn, on
from areal_actors.agent_runners.acceptance import Acceptance
from areal_actors.conversations.continuation import Continuations
from areal_actors.conversations.rows import apply_rewards
from areal_actors.errors import EngineError, RequestError, SessionError, SetupError
from areal_actors.gateway.completion import Completion, complete
from areal_actors.gateway.completion_check import CompletionFault, PublishedVersions
from areal_actors.gateway.long_work import LongWork
from areal_actors.gateway.open_calls import CallInHand
from areal_actors.gateway.outside_sessions import OutsideSessions
from areal_actors.gateway.seeds import asked, sampling_seed
from areal_actors.gateway.server import Gateway
from areal_actors.gateway.session_routes import add_session_routes
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    AgentReturned,
    CallModel,
    CompletionRefused,
    DescribeGateway,
    EngineMismatch,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    GatewayDescribed,
    Generate,
    InteractionRecorded,
    ModelAnswered,
    OpenSession,
    RewardSet,
    SessionOpened,
    SetReward,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.sessions.calls import digest_of, interaction_recorded, name_of
from areal_actors.sessions.capacity import Capacity
from areal_actors.sessions.episode_end import Ending, outcome, unused
from areal_actors.sessions.keys import admin_key, session_key
from areal_actors.sessions.outside_fold import GatewayState
from areal_actors.sessions.table import OVER, Session
from areal_actors.settings import GatewaySettings
from areal_actors.text.tokenizer import ChatTokenizer, vocabulary_of
from areal_actors.values import SamplingParams

Answers = ModelAnswered | InteractionRecorded | CompletionRefused
LoadTokenizer = Callable[[str], ChatTokenizer]
"""The chat tokenizer of a model folder."""


class SessionManager(OutsideSessions):
    """At most one session per episode is alive; an episode is exported at most once."""

    state_type = GatewayState
    asks = (Generate,)
    tick_seconds = 1.0

    def __init__(
        self,
        config: GatewaySettings,
        load_tokenizer: LoadTokenizer,
        *,
        secret: bytes,
        context: int,
        concurrency: int = 256,
        serve_http: bool = True,
        capacity: Capacity | None = None,
        sampling: SamplingParams | None = None,
        acceptance: Acceptance | None = None,
        seed: int = 0,
        run_folder: Path = Path(),
    ) -> None:
        """Agents outside have sessions if there is `capacity`; paths in events are relative to `run_folder`."""
        super().__init__(config, capacity or Capacity(0), secret=secret, sampling=sampling or SamplingParams(), acceptance=acceptance)
        self.load_tokenizer = load_tokenizer
        self.secret = secret
        self.seed = seed
        self.run_folder = run_folder
        self.context = context
        self.concurrency = concurrency
        self.serve_http = serve_http
        self.published = PublishedVersions()
        self.vocabulary = 0
        """Number of token ids of the model."""
        self.refused: Counter[str] = Counter()
        """Completions refused since this gateway started, by worker."""
        self.model = ""
        """The folder of the model, which has the tokenizer, as events name it."""
        self.chat: ChatTokenizer | None = None
        self.continuations: Continuations | None = None
        self.gateway: Gateway | None = None
        self.long_work = LongWork(2, "long-requests")
        self._under_way: dict[tuple[str, str], asyncio.Event] = {}
        """Requests that their client has named, by session and name, until they are answered."""
        self._unreported: list[InteractionRecorded] = []
        """Calls whose client left, to be reported by the next handling."""

    def snapshot(self) -> GatewayState:
        """What a gateway that takes over knows."""
        return GatewayState(
            book=self.book.snapshot(),
            outside=self.folded.snapshot(),
            model=self.model,
            published=self.published.newest,
            workers=dict(self.pool.versions),
        )

    def restore(self, state: GatewayState) -> None:
        """Take over."""
        self.book.restore(state.book)
        self.restore_outside(state.outside)
        self.published = PublishedVersions(state.published)
        for worker, version in state.workers.items():
            self.pool.loaded(worker, version)
        if state.model:
            self._load_chat(state.model)

    async def start(self, submit: Submit) -> None:
        """Serve the gateway."""
        if self.serve_http:
            admin = admin_key(self.secret, self.config.admin_key)
            of_key = self.book.session_of_key
            local = self.config.is_local()
            routes = partial(add_session_routes, submit=submit, session_of_key=of_key, admin_key=admin, open_metrics=local)
            self.gateway = Gateway(self.config, submit, of_key, routes, self.long_work)
            await self.gateway.start()

    async def drain(self) -> None:
        """Calls in hand get their answers; there are no new ones."""
        if self.gateway is not None:
            await self.gateway.stop()

    async def stop(self) -> None:
        """Stop serving."""
        await self.drain()
        self.long_work.shutdown(wait=False, cancel_futures=True)

    @on
    async def open_session(self, request: OpenSession, turn: Turn) -> Emits[SessionOpened]:
        work = request.work
        if refused := self.book.refuses(work):
            yield SessionOpened(refused=refused)
            return
        name = f"{work.episode}-{work.attempt}-{turn.cause[:8]}"
        key = session_key(self.secret, name)
        session = Session(id=name, api_key=key, work=work, lease_seconds=request.lease_seconds, expires=turn.now + request.lease_seconds)
        self.book.open(session)
        root = self.gateway.root if self.gateway else "http://gateway"
        yield SessionOpened(session=name, base_url=f"{root}/{name}/v1", api_key=key)

    @on
    async def call_model(self, request: CallModel, turn: Turn) -> Emits[ModelAnswered | InteractionRecorded | CompletionRefused]:
        name = name_of(request)
        try:
            async with self._alone(request.session, name, turn) as in_hand:
                session = self.book.get(request.session)
                if again := session.answered.get(name):
                    for part in again:
                        yield part
                    return
                session = self.book.update(session.called(turn.now))
                try:
                    async for said in self._completed(session, request, name, turn, in_hand):
                        yield said
                except EngineError as error:
                    for refused in self._failed(session, request, error):
                        yield refused
                    raise
                finally:
                    if (now := self.book.find(request.session)) is not None:
                        self.book.update(now.call_over(turn.now))
        except RequestError as error:
            yield ModelAnswered(error=str(error), error_status=400, error_field=error.field, error_code=error.code)
        except SessionError as error:
            yield ModelAnswered(error=str(error), error_status=410)
        except (EngineError, SetupError) as error:
            yield ModelAnswered(error=str(error), error_status=503)

    @asynccontextmanager
    async def _alone(self, session: str, name: str, turn: Turn) -> AsyncIterator[CallInHand]:
        """While no other call of this name is under way in the session; calls without a name wait for nobody."""
        with self.open_calls.call(session, turn.now) as in_hand:
            if not name:
                yield in_hand
                return
            while (under_way := self._under_way.get((session, name))) is not None:
                with turn.waiting("the same call, asked before", self.book.get(session).lease_seconds):
                    await under_way.wait()
            self._under_way[session, name] = asyncio.Event()
            try:
                yield in_hand
            finally:
                self._under_way.pop((session, name)).set()

    def _failed(self, session: Session, request: CallModel, error: EngineError) -> Iterator[CompletionRefused]:
        """Remember that the engine owes the session an answer, and name the worker that failed."""
        if (now := self.book.find(session.id)) is not None:
            self.book.update(now.engine_failed(digest_of(request), str(error)))
        if isinstance(error, CompletionFault):
            self.refused[error.worker] += 1
            yield CompletionRefused(
                worker=error.worker,
                session=session.id,
                episode=session.work.episode,
                interaction=f"{session.id}-{session.calls}",
                check=error.fault.check,
                cause=str(error.fault),
                purpose=session.work.purpose,
            )

    async def _completed(self, session: Session, request: CallModel, name: str, turn: Turn, in_hand: CallInHand) -> AsyncIterator[Answers]:
        """Answer, record the choices as interactions, all or none, and only then tell the agent that the answer is whole."""
        if self.chat is None or self.continuations is None:
            raise EngineError("the gateway has no tokenizer yet: no weights have been published")
        call = await self.long_work.run(
            request.body_bytes,
            Completion,
            f"{session.label}-{session.calls}",
            request,
            session.turns,
            self.chat,
            self.continuations,
            default=session.work.sampling,
            trained=session.work.purpose == "train",
            context=self.context,
            published=self.published,
            vocabulary=self.vocabulary,
            answer_seconds=self.config.completion_seconds,
            in_hand=in_hand,
        )
        if request.count_only:
            yield ModelAnswered(prompt_tokens=call.prompt_tokens, last=True)
            return
        what = asked(call.prompt.token_ids, call.sampling)
        session = self.book.update(self.book.get(request.session).asking(what))
        trained = request.store or self.config.store_false == "train"
        try:
            async for part in complete(call, self.pool, turn, session.lease_seconds, sampling_seed(self.seed, session, what)):
                yield part
        except (asyncio.CancelledError, GeneratorExit):
            if request.stream:
                self._keep_cancelled(session.id, call, turn, trained=trained)
            raise
        for answer in self._recorded(session.id, call, name, turn, trained=trained):
            yield answer

    def _recorded(self, session_id: str, call: Completion, name: str, turn: Turn, *, trained: bool) -> Iterator[Answers]:
        """The events of a completed call, and the last parts of its answer."""
        ended = [choice.ended(last=choice is call.choices[-1], trained=trained) for choice in call.choices]
        session = self.book.get(session_id)
        for _, done in ended:
            session = session.recorded(done, turn.now)
        if session.unanswered:
            session = session.engine_answered(digest_of(call.request))
        self.book.update(session.with_answer(name, [choice.whole for choice in call.choices]) if name else session)
        for choice, (_, done) in zip(call.choices, ended, strict=True):
            yield interaction_recorded(session, call.prompt, done, choice.whole.problem)
        for parts, _ in ended:
            yield from parts

    def _keep_cancelled(self, name: str, call: Completion, turn: Turn, *, trained: bool) -> None:
        """Record what a client has seen of a stream that it left: the next call of its conversation may continue it."""
        for choice in call.choices:
            if choice.sampled and (session := self.book.find(name)) is not None and session.state == "active":
                done = choice.cancelled(trained=trained)
                session = self.book.update(session.recorded(done, turn.now))
                self._unreported.append(interaction_recorded(session, call.prompt, done, choice.whole.problem))

    def _reported(self) -> list[InteractionRecorded]:
        """Calls recorded by a handling that had no more say; from now on they are reported."""
        events, self._unreported = self._unreported, []
        return events

    @on
    async def set_reward(self, request: SetReward, turn: Turn) -> Emits[RewardSet]:
        try:
            self.book.update(self.book.get(request.session).rewarded(request.interaction, request.reward, turn.now))
        except SessionError as error:
            session = self.book.find(request.session)
            yield RewardSet(error=str(error), error_status=410 if session is None or session.state in OVER else 404)
            return
        yield RewardSet()

    @on
    async def episode_scored(self, event: EpisodeScored, turn: Turn) -> Emits[Ending | InteractionRecorded]:
        for recorded in self._reported():
            yield recorded
        session = self.book.find(event.session)
        if session is None:
            if not self.book.is_over(event.work):
                yield EpisodeAbandoned(work=event.work, reason="session", detail="the gateway lost the session before it was scored")
            return
        if self.book.is_finished(session.work.episode):
            self.book.close(session)
            return
        rewards = {**session.rewards, **event.rewards}
        session = self.book.update(session.after("score", turn.now))
        turns = apply_rewards(session.interactions(), event.reward, rewards)
        unknown = sorted(set(rewards) - {turn.id for turn in turns})
        said = outcome(session.work, turns, output=event.output, unknown=unknown, engine_failure=session.engine_failure())
        if isinstance(said, EpisodeAbandoned):
            self.book.close(session)
            yield said
            return
        yield said
        self.book.close(session, finished=True)

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned) -> None:
        self.book.abandoned(event.work)
        if event.work.attempts_left == 0:
            await self.log_says_ended(event)

    @on
    async def trajectory_exported(self, event: TrajectoryExported) -> None:
        self.book.finished(event.trajectory.episode)
        await self.log_says_ended(event)

    @on
    async def episode_evaluated(self, event: EpisodeEvaluated) -> None:
        self.book.finished(event.work.episode)

    @on
    async def agent_returned(self, returned: AgentReturned) -> None:
        if (session := self.book.find(returned.session)) is not None:
            self.book.update(session.agent_returned())

    @on
    async def tick(self, _: Tick, turn: Turn) -> Emits[Ending | InteractionRecorded]:
        self.open_calls.look(turn.now)
        for recorded in self._reported():
            yield recorded
        async for said in self.overdue(turn):
            yield said
        for session in [session for session in self.book.expired(turn.now) if not session.outside]:
            self.book.close(session)
            yield unused(session)

    @on
    async def weights_published(self, event: WeightsPublished) -> None:
        self._load_chat(event.location.model)
        await self.published.publish(event.weight_version)

    def _load_chat(self, model: str) -> None:
        if self.chat is None:
            self.model, folder = model, str(self.run_folder / model)
            self.chat = self.load_tokenizer(folder)
            self.vocabulary = vocabulary_of(folder) or self.chat.largest_id + 1
            self.continuations = Continuations(self.chat)

    @on
    async def weights_loaded(self, event: WeightsLoaded) -> None:
        self.pool.loaded(event.worker, event.weight_version)

    @on
    async def engine_mismatch(self, event: EngineMismatch) -> None:
        """A worker that recycles its engine is gone until it has loaded weights again; others go on with what it had in hand."""
        for worker in ([event.worker] if event.worker else list(self.pool.versions)) if event.recycle else ():
            self.pool.lost(worker)

    @on
    async def actor_failed(self, event: ActorFailed) -> None:
        self.pool.lost(event.actor)

    @on
    async def actor_stopped(self, event: ActorStopped) -> None:
        self.pool.lost(event.actor)

    @on
    async def describe_gateway(self, _: DescribeGateway, turn: Turn) -> Emits[GatewayDescribed]:
        there = {"the run's log": self.caught_up, "weights": self.chat is not None, "an inference worker": bool(self.pool.versions)}
        yield GatewayDescribed(
            missing=", ".join(name for name in there if not there[name]),
            sessions=self.book.count_by_state(),
            exported=self.exported,
            abandoned=self.abandoned,
            room=self.capacity.room(turn.now),
            in_hand=self.pool.in_hand,
            refused_completions=dict(self.refused),
        )

    def status(self) -> dict[str, float | str]:
        """Open sessions, what the inference workers have in hand, and completions of theirs that were refused."""
        return {"sessions": len(self.book), **self.pool.status(self.refused)}
