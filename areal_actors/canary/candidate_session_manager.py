"""The session manager of a served model with a candidate: each session has the weights that its start names.

Gateway 0 starts all sessions, and so assigns their weights; the assignment is in `SessionStarted`. It also decides: a
decision changes which weights new sessions get, and nothing for open ones. Once no session has the earlier weights
after a promotion, all workers load the promoted ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from areal_actors.canary.shadow import ShadowCalls
from areal_actors.canary.trial import CandidateTrial, TrialState
from areal_actors.canary.verdict import decide
from areal_actors.canary.version_routing import SHADOW, VersionedWorkerPool
from areal_actors.core.candidate_settings import CandidateSettings
from areal_actors.feedback.feedback_session_manager import FeedbackGatewayState, FeedbackSessionManager
from areal_actors.gateway.completion import with_images_stored
from areal_actors.gateway.gateway_state import GatewayState
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.episode_end import EndingEvent
from areal_actors.gateway.sessions.kept_conversations import ConversationEvent
from areal_actors.gateway.sharing import unavailable
from areal_actors.messages import (
    AnswerInShadow,
    CandidateDecided,
    CandidatePublished,
    CompletionRefused,
    EpisodeAbandoned,
    FeedbackGiven,
    ModelRequest,
    ModelResponsePart,
    SessionCreated,
    SessionsErased,
    SessionStarted,
    ShadowAnswered,
    ShadowEnded,
    StartSession,
    ToolsRefused,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.runtime.actor import Context, Emits, Submit, Tick, on


class CandidateGatewayState(FeedbackGatewayState):
    """Snapshot of a session manager with a candidate."""

    trial: TrialState = TrialState()


class CandidateSessionManager(FeedbackSessionManager):
    """Sessions by share, sticky, and the decision about the candidate."""

    state_type = CandidateGatewayState

    def __init__(self, *arguments: Any, candidate: CandidateSettings, **options: Any) -> None:
        """`arguments` and the other options are those of a session manager that records feedback."""
        super().__init__(*arguments, **options)
        self.settings = candidate
        self.trial = CandidateTrial(int(options.get("seed", 0)))
        self.assigned: dict[str, int] = {}
        """Versions of sessions whose start has not come back from the log."""
        self.calls.pool = VersionedWorkerPool(self._version_of)
        self.shadow = ShadowCalls(self.calls)
        self.submit: Submit | None = None
        self._published = 0
        """Decisions and publications of this process that have not come back from the log."""

    @classmethod
    def kind(cls) -> str:
        """Returns the name of every session manager."""
        return SessionManager.kind()

    def snapshot(self) -> CandidateGatewayState:
        """The state for a successor gateway."""
        state = super().snapshot()
        fields = {name: getattr(state, name) for name in state.__struct_fields__}
        return CandidateGatewayState(**fields, trial=self.trial.snapshot())

    def restore(self, state: GatewayState) -> None:
        """Restore the state of a predecessor."""
        super().restore(state)
        if isinstance(state, CandidateGatewayState):  # that of a gateway without a candidate lacks the trial
            self.trial = CandidateTrial(self.trial.seed, state.trial)

    async def start(self, submit: Submit) -> None:
        """Serve the gateway."""
        self.submit = submit
        await super().start(submit)

    async def stop(self) -> None:
        """Stop serving, and asking the candidate for answers beside."""
        await self.shadow.close()
        await super().stop()

    def _version_of(self, session: str) -> int:
        """Returns the version that answers a session; -1 for any."""
        if session.startswith(SHADOW):
            return self.trial.published.weight_version if self.trial.published is not None else -1
        return self.assigned.get(session, self.trial.versions.get(session, -1))

    # ---------------------------------------------------------------- requests

    @on
    async def start_session(
        self, request: StartSession, context: Context
    ) -> Emits[EndingEvent | ConversationEvent | SessionStarted | SessionCreated]:
        """Start a session, with the weights that its name draws."""
        if self.trial.serving < 0 and self.external.caught_up:
            yield SessionCreated(refused=unavailable("the weights of new sessions are not published yet"))
            return
        async for message in super().start_session(request, context):
            if isinstance(message, SessionStarted):
                version = self.assigned[message.session] = self.trial.version_for(message.session)
                yield msgspec.structs.replace(message, weight_version=version)
            else:
                yield message

    @on
    async def model_request(
        self, request: ModelRequest, context: Context
    ) -> Emits[ModelResponsePart | CompletionRefused]:
        """Answer a call; in a shadowed session the candidate then answers it, too."""
        before = self.registry.find(request.session)
        async for message in super().model_request(request, context):
            if isinstance(message, ModelResponsePart) and message.last and not message.error and before is not None:
                await self._shadow(before.id, request, message.interaction)
            yield message

    async def _shadow(self, session: str, request: ModelRequest, interaction: str) -> None:
        at, before = self.trial.published, self.registry.find(session)
        is_shadowed = self.trial.is_open() and at is not None and at.mode == "shadow" and before is not None
        if not is_shadowed or before is None or not interaction or not self.trial.is_in_share(session):
            return
        earlier = tuple(turn for turn in before.turns if turn.interaction.id != interaction)
        request = await with_images_stored(request, self.images, self.calls.served)
        assert self.submit is not None
        self.shadow.ask(self.submit, msgspec.structs.replace(before, turns=earlier), request, interaction)

    @on
    async def answer_in_shadow(self, request: AnswerInShadow, context: Context) -> Emits[ShadowAnswered | ShadowEnded]:
        """Have the candidate answer a call beside."""
        version = self.trial.published.weight_version if self.trial.published is not None else -1
        answered = await self.shadow.answer(request, version, context)
        yield answered
        if isinstance(answered, ShadowAnswered):
            yield ShadowEnded()

    # ---------------------------------------------------------------- events of the log

    @on
    async def weights_published(self, event: WeightsPublished) -> Emits[ToolsRefused]:
        """The served weights, which are the promoted ones once they are published again."""
        self._published = 0
        self.trial.fold(event)
        async for refused in super().weights_published(event):
            yield refused

    @on
    async def candidate_published(self, event: CandidatePublished) -> None:
        """Sessions are assigned by its share from here on."""
        self.trial.fold(event)
        await self.published.publish(event.weight_version)

    @on
    def candidate_decided(self, event: CandidateDecided) -> None:
        """New sessions have the weights that are decided on."""
        self._published = 0
        self.trial.fold(event)

    @on
    async def session_started(self, event: SessionStarted, context: Context) -> None:
        """Fold its weights before it can be called here."""
        self.trial.fold(event)
        self.assigned.pop(event.session, None)
        await super().session_started(event, context)

    @on
    async def trajectory_exported(self, event: TrajectoryExported, context: Context) -> None:
        """Count the reward of its end."""
        await super().trajectory_exported(event, context)
        self.trial.fold(event)

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned, context: Context) -> Emits[ConversationEvent]:
        """An end without a reward, or a lost session."""
        async for kept in super().episode_abandoned(event, context):
            yield kept
        self.trial.fold(event)

    @on
    def conversation_kept(self, event: ConversationEvent) -> None:
        """Measure the answers of a session without a reward."""
        super().conversation_kept(event)
        self.trial.fold(event)

    @on
    def feedback_given(self, event: FeedbackGiven, context: Context) -> None:
        """Count the first reward of a session."""
        super().feedback_given(event, context)
        self.trial.fold(event)

    @on
    def sessions_erased(self, event: SessionsErased, context: Context) -> None:
        """Count erased sessions no more, unless they are counted already."""
        super().sessions_erased(event, context)
        self.trial.fold(event)

    @on
    def shadow_answered(self, event: ShadowAnswered) -> None:
        """Compare the two answers to one prompt."""
        self.trial.fold(event)

    @on
    async def tick(  # type: ignore[override]
        self, tick: Tick, context: Context
    ) -> Emits[EndingEvent | ConversationEvent | CandidateDecided | WeightsPublished]:
        """Decide, once the figures show it, and have all workers load promoted weights that no open session lacks."""
        async for ending in super().tick(tick, context):
            yield ending
        if self.share.number == 0 and self.external.caught_up and not self._published:
            for event in self._next_events():
                self._published += 1
                yield event

    def _next_events(self) -> Iterator[CandidateDecided | WeightsPublished]:
        if (decided := decide(self.trial)) is not None:
            yield decided
            return
        at, trial = self.trial.published, self.trial
        is_promoted = trial.decided is not None and trial.decided.decision == "promoted"
        if at is None or not is_promoted or trial.serving == at.weight_version:
            return
        before = {version for version in self.assigned.values() if version != at.weight_version}
        if not before and not trial.open_sessions(at.serving_version):
            yield WeightsPublished(weight_version=at.weight_version, location=at.location)

    def status(self) -> dict[str, float | str]:
        """Status of every gateway, and of the comparison."""
        at = self.trial.published
        if at is None:
            return super().status()
        state = self.trial.decided.decision if self.trial.decided is not None else at.mode
        candidate, served = self.trial.rewarded()
        figures: dict[str, float | str] = {
            "candidate": state,
            "candidate_rewarded": float(candidate),
            "serving_rewarded": float(served),
        }
        return {**super().status(), **figures}
