"""The session manager: keeps each episode's record of model calls, and exports it as a trajectory once it is scored.

Its gateway turns an agent's HTTP calls into the questions answered here. The tokens stay here until they leave once, as
`TrajectoryExported`; only text and numbers travel in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from areal_actors.actor import Emits, Submit, Tick, Turn, on
from areal_actors.conversations.continuation import Continuations
from areal_actors.conversations.conversation import Prompt
from areal_actors.conversations.conversation import Turn as Call
from areal_actors.conversations.rows import rewarded
from areal_actors.conversations.same_messages import digest
from areal_actors.errors import EngineError, RequestError, SessionError, SetupError
from areal_actors.gateway.completion import Completion, complete
from areal_actors.gateway.outside_sessions import OutsideSessions
from areal_actors.gateway.seeds import asked, sampling_seed
from areal_actors.gateway.server import Gateway
from areal_actors.gateway.session_routes import add_session_routes
from areal_actors.gateway.worker_pool import WorkerPool
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    CallModel,
    DescribeGateway,
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
from areal_actors.sessions.capacity import Capacity
from areal_actors.sessions.episode_end import Ending, outcome
from areal_actors.sessions.keys import admin_key, session_key
from areal_actors.sessions.table import OVER, Session
from areal_actors.settings import GatewaySettings
from areal_actors.text.tokenizer import ChatTokenizer
from areal_actors.values import SamplingParams

LoadTokenizer = Callable[[str], ChatTokenizer]
"""The chat tokenizer of a model folder."""


class SessionManager(OutsideSessions):
    """At most one session per episode is alive; an episode is exported at most once."""

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
        seed: int = 0,
    ) -> None:
        """Agents outside the run have sessions when there is `capacity` for them, and sample as `sampling` says; `seed` is the run's."""
        super().__init__(config, capacity or Capacity(0), secret=secret, sampling=sampling or SamplingParams())
        self.load_tokenizer = load_tokenizer
        self.secret = secret
        self.seed = seed
        self.context = context
        self.concurrency = concurrency
        self.serve_http = serve_http
        self.pool = WorkerPool()
        self.chat: ChatTokenizer | None = None
        self.continuations: Continuations | None = None
        self.gateway: Gateway | None = None
        self._under_way: dict[tuple[str, str], asyncio.Event] = {}
        """Requests that their client has named, by session and name, until they are answered."""

    async def start(self, submit: Submit) -> None:
        """Serve the gateway."""
        if self.serve_http:
            admin = admin_key(self.secret, self.config.admin_key)
            of_key = self.book.session_of_key
            self.gateway = Gateway(self.config, submit, of_key, lambda app: add_session_routes(app, submit, of_key, admin))
            await self.gateway.start()

    async def drain(self) -> None:
        """Calls in hand get their answers; there are no new ones."""
        await self.stop()

    async def stop(self) -> None:
        """Stop serving."""
        if self.gateway is not None:
            await self.gateway.stop()

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
    async def call_model(self, request: CallModel, turn: Turn) -> Emits[ModelAnswered | InteractionRecorded]:
        name = name_of(request)
        try:
            async with self._alone(request.session, name, turn):
                session = self.book.get(request.session)
                if again := session.answered.get(name):
                    for part in again:
                        yield part
                    return
                session = self.book.update(session.called(turn.now))
                try:
                    async for said in self._completed(session, request, name, turn):
                        yield said
                finally:
                    if (now := self.book.find(request.session)) is not None:
                        self.book.update(now.call_over(turn.now))
        except RequestError as error:
            yield ModelAnswered(error=str(error), error_status=400, error_field=error.field)
        except SessionError as error:
            yield ModelAnswered(error=str(error), error_status=410)
        except (EngineError, SetupError) as error:
            yield ModelAnswered(error=str(error), error_status=503)

    @asynccontextmanager
    async def _alone(self, session: str, name: str, turn: Turn) -> AsyncIterator[None]:
        """While no other call of this name is under way in the session; calls without a name wait for nobody."""
        if not name:
            yield
            return
        while (under_way := self._under_way.get((session, name))) is not None:
            with turn.waiting("the same call, asked before", self.book.get(session).lease_seconds):
                await under_way.wait()
        self._under_way[session, name] = asyncio.Event()
        try:
            yield
        finally:
            self._under_way.pop((session, name)).set()

    async def _completed(
        self, session: Session, request: CallModel, name: str, turn: Turn
    ) -> AsyncIterator[ModelAnswered | InteractionRecorded]:
        """Answer, record the choices as interactions, all or none, and only then tell the agent that the answer is whole."""
        if self.chat is None or self.continuations is None:
            raise EngineError("the gateway has no tokenizer yet: no weights have been published")
        call = Completion(
            f"{session.label}-{session.calls}",
            request,
            session.turns,
            self.chat,
            self.continuations,
            default=session.work.sampling,
            trained=session.work.purpose == "train",
            context=self.context,
        )
        if request.count_only:
            yield ModelAnswered(prompt_tokens=call.prompt_tokens, last=True)
            return
        what = asked(call.prompt.token_ids, call.sampling)
        session = self.book.update(session.asking(what))
        async for part in complete(call, self.pool, turn, session.lease_seconds, sampling_seed(self.seed, session, what)):
            yield part
        ended = [choice.ended(last=choice is call.choices[-1]) for choice in call.choices]
        session = self.book.get(session.id)
        for _, done in ended:
            session = session.recorded(done, turn.now)
        self.book.update(session.with_answer(name, [choice.whole for choice in call.choices]) if name else session)
        for choice, (_, done) in zip(call.choices, ended, strict=True):
            yield _interaction(session, call.prompt, done, choice.whole.problem)
        for parts, _ in ended:
            for part in parts:
                yield part

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
    async def episode_scored(self, event: EpisodeScored, turn: Turn) -> Emits[Ending]:
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
        turns = rewarded(session.interactions(), event.reward, rewards)
        said = outcome(session.work, turns, output=event.output, unknown=sorted(set(rewards) - {turn.id for turn in turns}))
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
            await self.heard_end(event)

    @on
    async def trajectory_exported(self, event: TrajectoryExported) -> None:
        self.book.finished(event.trajectory.episode)
        await self.heard_end(event)

    @on
    async def episode_evaluated(self, event: EpisodeEvaluated) -> None:
        self.book.finished(event.work.episode)

    @on
    async def tick(self, _: Tick, turn: Turn) -> Emits[Ending]:
        async for said in self.overdue(turn):
            yield said
        for session in [session for session in self.book.expired(turn.now) if not session.outside]:
            self.book.close(session)
            detail = f"nobody used session {session.id} for {session.lease_seconds:g} s"
            yield EpisodeAbandoned(work=session.work, reason="lost", detail=detail)

    @on
    async def weights_published(self, event: WeightsPublished) -> None:
        if self.chat is None:
            self.chat = self.load_tokenizer(event.location.model)
            self.continuations = Continuations(self.chat)

    @on
    async def weights_loaded(self, event: WeightsLoaded) -> None:
        self.pool.loaded(event.worker, event.weight_version)

    @on
    async def actor_failed(self, event: ActorFailed) -> None:
        self.pool.lost(event.actor)

    @on
    async def actor_stopped(self, event: ActorStopped) -> None:
        self.pool.lost(event.actor)

    @on
    async def describe_gateway(self, _: DescribeGateway, turn: Turn) -> Emits[GatewayDescribed]:
        missing = {"the run's log": self.caught_up, "weights": self.chat is not None, "an inference worker": bool(self.pool.versions)}
        yield GatewayDescribed(
            missing=", ".join(name for name, there in missing.items() if not there),
            sessions=self.book.count_by_state(),
            exported=self.exported,
            abandoned=self.abandoned,
            room=self.capacity.room(turn.now),
            in_hand=self.pool.in_hand,
        )

    def status(self) -> dict[str, float | str]:
        """Open sessions, and what the inference workers have in hand."""
        return {"sessions": len(self.book), **{f"in hand of {worker}": count for worker, count in self.pool.in_hand.items()}}


def name_of(request: CallModel) -> str:
    """The client's own name for a request and what it asks, since a careless client may name all its requests alike; empty without."""
    if not request.request_id:
        return ""
    return f"{request.request_id} {digest(msgspec.structs.replace(request, stream=False)).hex()}"


def _interaction(session: Session, prompt: Prompt, done: Call, problem: str) -> InteractionRecorded:
    made = done.interaction
    return InteractionRecorded(
        session=session.id,
        episode=session.work.episode,
        interaction=made.id,
        parent=made.parent,
        split=prompt.split,
        prompt_tokens=len(prompt.token_ids) // 4,
        completion_tokens=len(made.completion),
        finish_reason=made.finish_reason,
        weight_version=made.completion.versions[-1].weight_version,
        problem=problem,
        purpose=session.work.purpose,
    )
