"""The rollout worker: runs the agent on one task, and publishes its score, or the result for scoring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from areal_actors.core.errors import AgentError, RewardError
from areal_actors.core.gateways import gateway_name, gateway_of_group, gateway_of_session
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
    WorkerLeft,
)
from areal_actors.rewards.acceptance import Acceptance, describe_session, rejected_event, rewards_set, scored_episode
from areal_actors.rewards.bounded_rule import BoundedRule
from areal_actors.rollout.agent_runner import AgentResult, AgentRunner
from areal_actors.rollout.episode_context import EpisodeContext, workflow_context
from areal_actors.rollout.failure_attribution import FailedAttempt, attribute_failure, gateway_unreachable
from areal_actors.rollout.model_end import find_model_cause
from areal_actors.runtime.actor import Actor, Context, Emits, Submit, on
from areal_bus.errors import BusError, NoReply, NoResponder

GATEWAY_PATIENCE_SECONDS = 60.0
ASK_SECONDS = 10.0
LEAVING_SECONDS = 1.0
"""Pause before a gateway that leaves is asked again: its sessions end, or the time to finish them does."""
LEASE_GRACE_SECONDS = 60.0
"""Added to the agent's time in a session's lease: for scoring, and so that the worker reports a timeout before the
lease expires."""
FIRST = gateway_name(0)
"""The gateway of sessions whose name has no mark."""
MAX_QUEUED = 4.0
"""Maximum time for which an agent's calls may wait for their first token, in multiples of `task.timeout_seconds`."""
TIMEOUT_ADVICE = "raise task.timeout_seconds if it needs longer"
RETURNED_NONE = "the agent returned None and set no reward, which rejects the episode"

Outcome = ScoreEpisode | EpisodeScored | EpisodeAbandoned
Report = AgentReturned | EventLoopBlocked


class RolloutWorker(Actor):
    """An agent that raises, hangs or returns nonsense is an `EpisodeAbandoned`, never a reward.

    One that returns None rejects its episode.
    Only what the model itself brought about (`rollout/model_end.py`) is scored, with the reward that the recipe states
    for it.

    Held-out and training episodes do not wait for each other.
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
        rule: BoundedRule | None = None,
        acceptance: Acceptance | None = None,
        retry_rejected: bool = False,
        overflow_reward: float = 0.0,
        plays_environment: bool = False,
        evaluations: int = 0,
        gateway_seconds: float = GATEWAY_PATIENCE_SECONDS,
    ) -> None:
        """Runs `concurrency` episodes at once, plus `evaluations` held-out ones; 0 means `concurrency` again.

        Texts that `rule` takes are scored here, others by a reward worker. An episode that the model ends gets
        `overflow_reward`. With `plays_environment` the agent's own failures are those of the environment.
        `gateway_seconds`: maximum wait for a gateway, which may have to join from another host.
        """
        self.runner = runner
        self.concurrency = concurrency
        self.evaluating = asyncio.Semaphore(evaluations or concurrency)
        self.timeout_seconds = timeout_seconds
        self.rule = rule
        self.acceptance = acceptance
        self.retry_rejected = retry_rejected
        self.overflow_reward = overflow_reward
        self.plays_environment = plays_environment
        self.gateway_seconds = gateway_seconds
        self._limits: dict[str, asyncio.Timeout] = {}
        """Time limit of each running agent, by its session."""
        self._lost: dict[str, str] = {}
        """Gateways of other hosts whose agents were stopped, by session."""
        self.gateways = 1
        """Number of gateways, as the last one asked reported it."""

    async def start(self, submit: Submit) -> None:  # noqa: ARG002 - it sends itself no message
        """Load the agent; one that cannot be loaded ends the run here."""
        await self.runner.start()

    async def stop(self) -> None:
        """Stop the agents that still run."""
        await self.runner.close()

    @on
    def gateway_lost(self, event: WorkerLeft) -> None:
        """Stop the agents whose gateway was on another host that is lost.

        Calls to an address without a host may hang.
        """
        for session, limit in self._limits.items() if event.actor else ():
            if (gateway_of_session(session) or FIRST) == event.actor:
                self._lost[session] = event.worker
                limit.reschedule(asyncio.get_running_loop().time())

    @on
    async def run_episode(self, work: RunEpisode, context: Context) -> Emits[Outcome | Report]:
        try:
            opened = await self._open_session(work, context)
        except BusError as error:
            yield EpisodeAbandoned(work=work, reason="session", detail=f"no session could be opened: {error}")
            return
        if opened.refused:
            return
        began = asyncio.get_running_loop().time()
        result = await self._run_agent(work, opened, context)
        outcome: Outcome | None
        if isinstance(result, AgentResult):
            outcome = await self._outcome(work, result, opened.session, context)
        else:
            failed = msgspec.structs.replace(result, seconds=asyncio.get_running_loop().time() - began)
            outcome = await self._explain_failure(failed, opened, context)
        if isinstance(outcome, ScoreEpisode):
            yield AgentReturned(session=opened.session)
        if outcome is not None:
            yield outcome
        for report in self.runner.take_blocks():
            yield report

    async def _open_session(self, work: RunEpisode, context: Context) -> SessionOpened:
        """Open a session at the gateway of the group: any gateway reports how many there are, and so which one that is.

        One that leaves, or is lost with its host and does not answer, is taken over by another process.
        """
        question = OpenSession(work=work, lease_seconds=self.timeout_seconds + LEASE_GRACE_SECONDS)
        until, patience = asyncio.get_running_loop().time() + self.gateway_seconds, GATEWAY_PATIENCE_SECONDS
        while True:
            to = gateway_of_group(work.group, self.gateways)
            try:
                opened = await context.ask(question, timeout=ASK_SECONDS, to=to, retry_for_seconds=patience)
            except (NoReply, NoResponder):
                if asyncio.get_running_loop().time() >= until:
                    raise
                patience = 0.0
                opened = SessionOpened(gateways=self.gateways, leaving=True)
            self.gateways = opened.gateways
            if opened.session or opened.refused:
                return opened
            if opened.leaving:
                with context.waiting(f"another process to take {to or 'the gateway'} over", LEAVING_SECONDS):
                    await asyncio.sleep(LEAVING_SECONDS)

    @on
    async def evaluate_episode(self, held_out: EvaluateEpisode, context: Context) -> Emits[Outcome | Report]:
        async with self.evaluating:
            async for event in self.run_episode(held_out.work, context):
                yield event

    async def _run_agent(
        self, work: RunEpisode, opened: SessionOpened, context: Context
    ) -> AgentResult | FailedAttempt:
        episode_context = EpisodeContext.of(work, opened.weight_version)
        try:
            with (
                context.waiting(f"agent in episode {work.episode}", self.timeout_seconds),
                workflow_context.running(episode_context),
            ):
                async with asyncio.timeout(None) as limit, self._enforce_limit(limit, opened.session, context):
                    self._limits[opened.session] = limit
                    return await self.runner.run(work.task, base_url=opened.base_url, api_key=opened.api_key)
        except TimeoutError as error:
            if worker := self._lost.pop(opened.session, ""):
                return FailedAttempt(
                    work=work, reason="gateway", message=f"{worker}, which served its gateway, has left the run"
                )
            notes = tuple(getattr(error.__context__, "__notes__", []))
            message = f"the agent did not return within {self.timeout_seconds:g} s"
            return FailedAttempt(work=work, reason="timeout", message=message, advice=TIMEOUT_ADVICE, notes=notes)
        except AgentError as error:
            return FailedAttempt(work=work, reason="agent", message=str(error), traits=error.traits)
        finally:
            self._limits.pop(opened.session, None)
            self._lost.pop(opened.session, None)

    @asynccontextmanager
    async def _enforce_limit(self, limit: asyncio.Timeout, session: str, context: Context) -> AsyncIterator[None]:
        """End the limit after `timeout_seconds`, without the time in which calls wait for their first token."""
        loop = asyncio.get_running_loop()
        checks: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            self.timeout_seconds, lambda: checks.append(loop.create_task(self._end_limit(limit, session, context)))
        )
        try:
            yield
        finally:
            timer.cancel()
            for check in checks:
                check.cancel()

    async def _end_limit(self, limit: asyncio.Timeout, session: str, context: Context) -> None:
        """Wait as long as the session's calls have waited in the queue of an engine, then end the limit.

        Such a wait is no fault of the agent.
        """
        loop = asyncio.get_running_loop()
        began = loop.time() - self.timeout_seconds
        with suppress(BusError):  # a gateway that does not answer extends nothing
            while (
                queued := (await describe_session(session, context)).queued_seconds
            ) <= MAX_QUEUED * self.timeout_seconds:
                if (left := began + self.timeout_seconds + queued - loop.time()) <= 0:
                    break
                await asyncio.sleep(left)
        limit.reschedule(loop.time())

    async def _explain_failure(self, failed: FailedAttempt, opened: SessionOpened, context: Context) -> Outcome | None:
        """The failure of an attempt, with its cause as the gateway knows it, or its score if the model ended it.

        None if another worker runs it now.
        """
        try:
            described = await describe_session(opened.session, context, failed.traits.document)
        except BusError as error:
            return gateway_unreachable(failed, error)
        abandoned = attribute_failure(failed, described)
        if abandoned is None or abandoned.reason != "agent":
            return abandoned
        if cause := find_model_cause(failed, described):
            ended = AgentResult(reward=self.overflow_reward)
            outcome = await self._outcome(failed.work, ended, opened.session, context)
            is_scored = isinstance(outcome, EpisodeScored)
            return msgspec.structs.replace(outcome, ended_by="model", end_cause=cause) if is_scored else outcome
        return msgspec.structs.replace(abandoned, reason="environment") if self.plays_environment else abandoned

    async def _outcome(self, work: RunEpisode, result: AgentResult, session: str, context: Context) -> Outcome:
        if result.output is not None:
            return await self._score_text(ScoreEpisode(work=work, session=session, output=result.output), context)
        scored = EpisodeScored(
            work=work,
            session=session,
            reward=result.reward,
            rewards=result.rewards,
            metrics=result.metrics,
            spans=result.spans,
        )
        return await self._reject(work, result, session, context) or scored

    async def _score_text(self, work: ScoreEpisode, context: Context) -> Outcome:
        """The score of a text, or the work of scoring it."""
        if self.rule is None or not self.rule.takes(work.output):
            return work
        try:
            score = self.rule.score(work.work.task.data, work.output)
        except RewardError as error:
            return EpisodeAbandoned(work=work.work, reason="reward", detail=str(error))
        return await scored_episode(work, score, self.acceptance, context)

    async def _reject(
        self, work: RunEpisode, result: AgentResult, session: str, context: Context
    ) -> EpisodeAbandoned | None:
        """The end of a rejected episode, None for an accepted one; text is judged where it is scored."""
        returned_none = result.reward is None and not result.rewards
        if self.acceptance is None and not returned_none:
            return None
        try:
            described = await describe_session(session, context)
        except BusError as error:
            return EpisodeAbandoned(
                work=work, reason="session", detail=f"the gateway did not report which rewards were set: {error}"
            )
        if described.engine_failure:
            return None  # the session manager, which scores it, abandons it as the engine's failure
        rewards = {**rewards_set(described), **result.rewards}
        if returned_none and not rewards:
            return rejected_event(work, RETURNED_NONE, retry=self.retry_rejected)
        if self.acceptance is None:
            return None
        return await self.acceptance.outcome(work, reward=result.reward, rewards=rewards)
