"""Requests about one session, of any kind: its state, the tokens of a call, rewards, and the calls that are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from areal_actors.core.errors import RewardError, SessionError
from areal_actors.gateway.conversations.turns import path_to, token_ids_of
from areal_actors.gateway.model_calls import ModelCalls
from areal_actors.gateway.sessions.model_texts import has_written
from areal_actors.gateway.sessions.span_places import apply_spans
from areal_actors.gateway.sessions.table import CLOSED_STATES, summaries
from areal_actors.messages import (
    DescribeSession,
    GetInteraction,
    InteractionsRecorded,
    InteractionTokens,
    Refusal,
    RewardSet,
    SelectTrained,
    SessionDescribed,
    SetReward,
    TrainedSelected,
)
from areal_actors.runtime.actor import Context


class SessionRequests:
    """Answers them from the sessions of a gateway."""

    def __init__(self, calls: ModelCalls, refusal: Callable[[str], Refusal]) -> None:
        """`refusal` returns the refusal of a session that is not here, or not yet."""
        self.calls, self.registry = calls, calls.registry
        self._unknown = refusal

    def describe_session(
        self, request: DescribeSession, context: Context
    ) -> Iterator[InteractionsRecorded | SessionDescribed]:
        """Describe a session, running or finished."""
        if (session := self.registry.find(request.session)) is not None:
            if request.by_agent:
                session = self.registry.update(session.renew_lease(context.now))
            else:  # the worker, which may abandon the episode
                yield from self.calls.unreported.of(session.id)
            yield SessionDescribed(
                session=session.id,
                task=session.work.task.id,
                state=session.state,
                interactions=summaries(session.interactions(), session.rewards, session.client_sessions()),
                running=session.running,
                lease_seconds=session.lease_seconds,
                expires_in=session.expires - context.now,
                engine_failure=session.engine_failure(),
                overflow=session.overflow,
                has_written=has_written(session.turns, request.document),
                open_calls=self.calls.open_calls.describe(session.id, context.now, self.calls.pool.in_flight),
                queued_seconds=self.calls.open_calls.queued_seconds(session.id, context.now),
            )
        elif (kept := self.registry.find_finished(request.session)) is not None:
            turns = kept.trajectory.interactions if kept.trajectory is not None else ()
            yield SessionDescribed(
                session=kept.id, task=kept.task, state=kept.state, detail=kept.detail, interactions=summaries(turns)
            )
        else:
            yield SessionDescribed(
                refused=self._unknown(request.session), replaced_by=self.registry.replacement_of(request.session)
            )

    def get_interaction(self, request: GetInteraction, context: Context) -> Iterator[InteractionTokens]:
        """Look up the tokens of a completed call."""
        session = self.registry.find(request.session)
        turns = {turn.interaction.id: turn for turn in session.turns} if session is not None else {}
        if session is None:
            yield InteractionTokens(refused=self._unknown(request.session))
        elif request.interaction not in turns:
            turn_ids = ", ".join(turns) or "none"
            reason = f"session {session.id} has no completed interaction '{request.interaction}'; it has {turn_ids}"
            yield InteractionTokens(refused=Refusal(status=404, reason=reason, field="interaction_id"))
        else:
            self.registry.update(session.renew_lease(context.now))
            *earlier, turn = path_to(request.interaction, turns)
            interaction = turn.interaction
            yield InteractionTokens(
                interaction=interaction.id,
                parent=interaction.parent,
                prompt_ids=token_ids_of(earlier) + interaction.prompt_suffix,
                completion=interaction.completion,
                finish_reason=interaction.finish_reason,
            )

    def select_trained(self, request: SelectTrained, context: Context) -> Iterator[TrainedSelected]:
        """Restrict what is trained of a session to some of its calls."""
        try:
            self.registry.update(self.registry.get(request.session).select_trained(request.interactions, context.now))
        except SessionError as error:
            status = 404 if self.registry.find(request.session) is not None else 410
            yield TrainedSelected(refused=Refusal(status=status, reason=str(error), field="interaction_ids"))
            return
        yield TrainedSelected()

    def set_reward(self, request: SetReward, context: Context) -> Iterator[RewardSet]:
        """Set the reward of a call, or of the last one."""
        try:
            after = self.registry.get(request.session).set_reward(
                request.interaction, request.reward, context.now, request.role, request.spans
            )
            if request.spans and (chat := self.calls.chat) is not None:
                apply_spans(after.interactions(), after.spans, chat)  # wrong ones are refused now
            self.registry.update(after)
        except RewardError as error:
            yield RewardSet(error=f"the session's rewards stay as they are: {error}", error_status=422)
            return
        except SessionError as error:
            session = self.registry.find(request.session)
            yield RewardSet(
                error=str(error), error_status=410 if session is None or session.state in CLOSED_STATES else 404
            )
            return
        yield RewardSet()
