"""The session manager: keeps each episode's record of model calls, and exports it as a trajectory once it is scored.

Its gateway turns an agent's HTTP calls into the questions answered here. The tokens stay here until they leave once, as
`TrajectoryExported`; only text and numbers travel in between.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable

from areal_actors.actor import Actor, Emits, Submit, Tick, Turn, on
from areal_actors.completion import Completion, complete, sampling_of
from areal_actors.conversation import Tokenizer, rewarded
from areal_actors.errors import EngineError, RequestError, SessionError
from areal_actors.gateway import Gateway
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    ChatCompleted,
    CompleteChat,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    Generate,
    InteractionRecorded,
    OpenSession,
    RewardSet,
    RunEpisode,
    SessionOpened,
    SetReward,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.session_book import SessionBook
from areal_actors.sessions import Session
from areal_actors.settings import GatewaySettings
from areal_actors.values import Interaction, Trajectory
from areal_actors.worker_pool import WorkerPool

LoadTokenizer = Callable[[str], Tokenizer]
"""The chat tokenizer of a model folder."""


class SessionManager(Actor):
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
    ) -> None:
        self.config = config
        self.load_tokenizer = load_tokenizer
        self.secret = secret
        self.context = context
        self.concurrency = concurrency
        self.serve_http = serve_http
        self.book = SessionBook()
        self.pool = WorkerPool()
        self.tokenizer: Tokenizer | None = None
        self.gateway: Gateway | None = None

    async def start(self, submit: Submit) -> None:
        """Serve the gateway."""
        if self.serve_http:
            self.gateway = Gateway(self.config, submit, self.book.session_of_key)
            await self.gateway.start()

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
        key = "sk-" + hmac.new(self.secret, name.encode(), "sha256").hexdigest()
        session = Session(id=name, api_key=key, work=work, lease_seconds=request.lease_seconds, expires=turn.now + request.lease_seconds)
        self.book.open(session)
        root = self.gateway.root if self.gateway else "http://gateway"
        yield SessionOpened(session=name, base_url=f"{root}/{name}/v1", api_key=key)

    @on
    async def complete_chat(self, request: CompleteChat, turn: Turn) -> Emits[ChatCompleted | InteractionRecorded]:
        try:
            session = self.book.update(self.book.get(request.session).called(turn.now))
        except SessionError as error:
            yield ChatCompleted(error=str(error), error_status=410)
            return
        try:
            async for said in self._completed(session, request, turn):
                yield said
        except RequestError as error:
            yield ChatCompleted(error=str(error), error_status=400, error_field=error.field)
        except SessionError as error:
            yield ChatCompleted(error=str(error), error_status=410)
        except EngineError as error:
            yield ChatCompleted(error=str(error), error_status=503)
        finally:
            if (now := self.book.find(request.session)) is not None:
                self.book.update(now.call_over(turn.now))

    async def _completed(self, session: Session, request: CompleteChat, turn: Turn) -> AsyncIterator[ChatCompleted | InteractionRecorded]:
        """Answer, record the interaction, and only then tell the agent that the answer is whole."""
        if self.tokenizer is None:
            raise EngineError("the gateway has no tokenizer yet: no weights have been published")
        sampling = sampling_of(request.options, session.work.sampling, trained=session.work.purpose == "train")
        identifier = f"{session.id}-{session.calls}"
        call = Completion(identifier, request, sampling, session.turns, self.tokenizer, self.context)
        async for part in complete(call, self.pool, turn, session.lease_seconds):
            yield part
        done = call.recorded()
        self.book.update(self.book.get(session.id).recorded(done, turn.now))
        interaction = done.interaction
        yield InteractionRecorded(
            session=session.id,
            episode=session.work.episode,
            interaction=identifier,
            parent=interaction.parent,
            split=call.prompt.split,
            prompt_tokens=len(call.prompt.token_ids),
            completion_tokens=len(interaction.completion),
            finish_reason=interaction.finish_reason,
            weight_version=interaction.completion.versions[-1].weight_version,
            purpose=session.work.purpose,
        )
        yield call.last_part()

    @on
    async def set_reward(self, request: SetReward, turn: Turn) -> Emits[RewardSet]:
        try:
            self.book.update(self.book.get(request.session).rewarded(request.interaction, request.reward, turn.now))
        except SessionError as error:
            yield RewardSet(error=str(error), error_status=410 if self.book.find(request.session) is None else 404)
            return
        yield RewardSet()

    @on
    async def episode_scored(self, event: EpisodeScored, turn: Turn) -> Emits[TrajectoryExported | EpisodeEvaluated | EpisodeAbandoned]:
        session = self.book.find(event.session)
        if session is None:
            if not self.book.is_over(event.work):
                yield EpisodeAbandoned(work=event.work, reason="session", detail="the gateway lost the session before it was scored")
            return
        if self.book.is_finished(session.work.episode):
            self.book.close(session)
            return
        rewards = {**session.rewards, **event.rewards}
        turns = rewarded([turn_.interaction for turn_ in session.turns], event.reward, rewards)
        if problem := _not_trainable(turns, rewards):
            self.book.close(session)
            yield EpisodeAbandoned(work=session.work, reason="agent", detail=problem)
            return
        yield _outcome(session.after("score", turn.now).work, turns, event.output)
        self.book.close(session, finished=True)

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned) -> None:
        self.book.abandoned(event.work)

    @on
    async def trajectory_exported(self, event: TrajectoryExported) -> None:
        self.book.finished(event.trajectory.episode)

    @on
    async def episode_evaluated(self, event: EpisodeEvaluated) -> None:
        self.book.finished(event.work.episode)

    @on
    async def tick(self, _: Tick, turn: Turn) -> Emits[EpisodeAbandoned]:
        for session in self.book.expired(turn.now):
            self.book.close(session)
            detail = f"nobody used session {session.id} for {session.lease_seconds:g} s"
            yield EpisodeAbandoned(work=session.work, reason="lost", detail=detail)

    @on
    async def weights_published(self, event: WeightsPublished) -> None:
        if self.tokenizer is None:
            self.tokenizer = self.load_tokenizer(event.location.model)

    @on
    async def weights_loaded(self, event: WeightsLoaded) -> None:
        self.pool.loaded(event.worker, event.weight_version)

    @on
    async def actor_failed(self, event: ActorFailed) -> None:
        self.pool.lost(event.actor)

    @on
    async def actor_stopped(self, event: ActorStopped) -> None:
        self.pool.lost(event.actor)

    def status(self) -> dict[str, float | str]:
        """Open sessions, and what the inference workers have in hand."""
        return {"sessions": len(self.book), **{f"in hand of {worker}": count for worker, count in self.pool.in_hand.items()}}


def _not_trainable(turns: tuple[Interaction, ...], rewards: dict[str, float]) -> str:
    """Why an episode cannot become a trajectory; empty if it can."""
    known = {turn.id for turn in turns}
    if not turns:
        return "the agent made no model call through its base_url, so there is nothing to train"
    if unknown := sorted(set(rewards) - known):
        return f"the agent rewarded interactions {', '.join(unknown)} that this episode does not have; it has {', '.join(sorted(known))}"
    if all(turn.reward is None for turn in turns):
        return "the agent returned None and set no reward; return a number or text, or POST /rl/set_reward"
    return ""


def _outcome(work: RunEpisode, turns: tuple[Interaction, ...], output: str) -> TrajectoryExported | EpisodeEvaluated:
    reward = next(turn.reward for turn in reversed(turns) if turn.reward is not None)
    if work.purpose == "evaluate":
        tokens = sum(len(turn.completion) for turn in turns)
        return EpisodeEvaluated(work=work, reward=reward, output=output, completion_tokens=tokens)
    trajectory = Trajectory(
        episode=work.episode, group=work.group, attempt=work.attempt, task=work.task.id, reward=reward, interactions=turns
    )
    return TrajectoryExported(trajectory=trajectory)
