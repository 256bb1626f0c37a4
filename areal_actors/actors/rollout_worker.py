"""The rollout worker: runs the agent on one task and hands the episode over to be scored."""

from __future__ import annotations

import asyncio

import msgspec

from areal_actors.actor import Actor, Emits, Submit, Turn, on
from areal_actors.agent_runners.acceptance import Acceptance, describe_session, rejected, rewards_set
from areal_actors.agent_runners.agent_runner import AgentResult, AgentRunner
from areal_actors.agent_runners.episode_context import EpisodeContext, workflow_context
from areal_actors.agent_runners.time_lost import Failure, explained, unanswered
from areal_actors.errors import AgentError
from areal_actors.messages import (
    AgentReturned,
    DescribeSession,
    EpisodeAbandoned,
    EpisodeScored,
    EvaluateEpisode,
    EventLoopBlocked,
    OpenSession,
    RunEpisode,
    ScoreEpisode,
    SessionOpened,
    WeightsLoaded,
)
from bus.errors import BusError

GATEWAY_PATIENCE_SECONDS = 60.0
LEASE_GRACE_SECONDS = 60.0
"""Of a session, beyond the agent's time: for its score, and so that the worker's own word of a hanging agent comes first."""
LONGER = "raise task.timeout_seconds if it needs longer"
RETURNED_NONE = "the agent returned None and set no reward, which rejects the episode"

Outcome = ScoreEpisode | EpisodeScored | EpisodeAbandoned
Report = AgentReturned | EventLoopBlocked


class RolloutWorker(Actor):
    """An agent that raises, hangs or returns nonsense is an `EpisodeAbandoned`, never a reward; one that returns None rejects its episode.

    Held-out episodes do not wait for others, nor others for them, and weights are heard of while either runs.
    """

    asks = (OpenSession, DescribeSession)
    history = "last"
    serial = False

    def __init__(
        self,
        runner: AgentRunner,
        *,
        concurrency: int,
        timeout_seconds: float,
        acceptance: Acceptance | None = None,
        retry_rejected: bool = False,
        evaluations: int = 0,
    ) -> None:
        """Runs `concurrency` episodes at once, and besides them `evaluations` held-out ones; 0 for as many again."""
        self.runner = runner
        self.concurrency = concurrency
        self.evaluating = asyncio.Semaphore(evaluations or concurrency)
        self.timeout_seconds = timeout_seconds
        self.acceptance = acceptance
        self.retry_rejected = retry_rejected
        self.weight_version = -1

    async def start(self, submit: Submit) -> None:  # noqa: ARG002 - it asks itself nothing
        """Make the agent ready; one that cannot be had ends the run here, with its name."""
        await self.runner.start()

    async def stop(self) -> None:
        """End whatever the agent still runs."""
        await self.runner.close()

    @on
    async def weights_loaded(self, event: WeightsLoaded) -> None:
        self.weight_version = max(self.weight_version, event.weight_version)

    @on
    async def run_episode(self, work: RunEpisode, turn: Turn) -> Emits[Outcome | Report]:
        try:
            question = OpenSession(work=work, lease_seconds=self.timeout_seconds + LEASE_GRACE_SECONDS)
            opened = await turn.ask(question, timeout=10.0, retry_for_seconds=GATEWAY_PATIENCE_SECONDS)
        except BusError as error:
            yield EpisodeAbandoned(work=work, reason="session", detail=f"no session could be opened: {error}")
            return
        if opened.refused:
            return
        began = asyncio.get_running_loop().time()
        result = await self._result(work, opened, turn)
        outcome: Outcome | None
        if isinstance(result, AgentResult):
            outcome = await self._outcome(work, result, opened.session, turn)
        else:
            failed = msgspec.structs.replace(result, seconds=asyncio.get_running_loop().time() - began)
            outcome = await self._why(failed, opened, turn)
        if isinstance(outcome, ScoreEpisode):
            yield AgentReturned(session=opened.session)
        if outcome is not None:
            yield outcome
        for report in self.runner.blocked():
            yield report

    @on
    async def evaluate_episode(self, held_out: EvaluateEpisode, turn: Turn) -> Emits[Outcome | Report]:
        async with self.evaluating:
            async for said in self.run_episode(held_out.work, turn):
                yield said

    async def _result(self, work: RunEpisode, opened: SessionOpened, turn: Turn) -> AgentResult | Failure:
        context = EpisodeContext.of(work, self.weight_version)
        try:
            with turn.waiting(f"agent in episode {work.episode}", self.timeout_seconds), workflow_context.running(context):
                async with asyncio.timeout(self.timeout_seconds):
                    return await self.runner.run(work.task, base_url=opened.base_url, api_key=opened.api_key)
        except TimeoutError as error:
            notes = tuple(getattr(error.__context__, "__notes__", []))
            said = f"the agent did not return within {self.timeout_seconds:g} s"
            return Failure(work=work, reason="timeout", said=said, advice=LONGER, notes=notes)
        except AgentError as error:
            return Failure(work=work, reason="agent", said=str(error))

    async def _why(self, failed: Failure, opened: SessionOpened, turn: Turn) -> EpisodeAbandoned | None:
        """The failure of an attempt, with what the gateway knows of where the time went; None if another worker runs it now."""
        try:
            return explained(failed, await describe_session(opened.session, turn))
        except BusError as error:
            return unanswered(failed, error)

    async def _outcome(self, work: RunEpisode, result: AgentResult, session: str, turn: Turn) -> Outcome:
        if result.output is not None:
            return ScoreEpisode(work=work, session=session, output=result.output)
        scored = EpisodeScored(work=work, session=session, reward=result.reward, rewards=result.rewards)
        return await self._rejected(work, result, session, turn) or scored

    async def _rejected(self, work: RunEpisode, result: AgentResult, session: str, turn: Turn) -> EpisodeAbandoned | None:
        """How an unwanted episode ends, None for a wanted one; text is judged where it is scored."""
        returned_none = result.reward is None and not result.rewards
        if self.acceptance is None and not returned_none:
            return None
        try:
            described = await describe_session(session, turn)
        except BusError as error:
            return EpisodeAbandoned(work=work, reason="session", detail=f"the gateway does not say which rewards were set: {error}")
        if described.engine_failure:
            return None  # the session manager, to which it goes to be scored, abandons it as the engine's failure
        rewards = {**rewards_set(described), **result.rewards}
        if returned_none and not rewards:
            return rejected(work, RETURNED_NONE, retry=self.retry_rejected)
        if self.acceptance is None:
            return None
        return await self.acceptance.outcome(work, reward=result.reward, rewards=rewards)
