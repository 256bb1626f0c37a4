"""The rollout worker: runs the agent on one task and hands the episode over to be scored."""

from __future__ import annotations

import asyncio

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.agent_runner import AgentRunner
from areal_actors.errors import AgentError
from areal_actors.messages import EpisodeAbandoned, EpisodeScored, OpenSession, RunEpisode, ScoreEpisode
from bus.errors import BusError

GATEWAY_PATIENCE_SECONDS = 60.0


class RolloutWorker(Actor):
    """An agent that raises, hangs or returns nonsense is an `EpisodeAbandoned`, never a reward."""

    asks = (OpenSession,)

    def __init__(self, runner: AgentRunner, *, concurrency: int, timeout_seconds: float) -> None:
        self.runner = runner
        self.concurrency = concurrency
        self.timeout_seconds = timeout_seconds

    @on
    async def run_episode(self, work: RunEpisode, turn: Turn) -> Emits[ScoreEpisode | EpisodeScored | EpisodeAbandoned]:
        try:
            question = OpenSession(work=work, lease_seconds=self.timeout_seconds)
            opened = await turn.ask(question, timeout=10.0, patience=GATEWAY_PATIENCE_SECONDS)
        except BusError as error:
            yield EpisodeAbandoned(work=work, reason="session", detail=f"no session could be opened: {error}")
            return
        if opened.refused:
            return
        try:
            with turn.waiting(f"agent in episode {work.episode}", self.timeout_seconds):
                async with asyncio.timeout(self.timeout_seconds):
                    result = await self.runner.run(work.task, base_url=opened.base_url, api_key=opened.api_key)
        except TimeoutError:
            detail = f"the agent did not return within {self.timeout_seconds:g} s; raise task.timeout_seconds if it needs longer"
            yield EpisodeAbandoned(work=work, reason="timeout", detail=detail)
            return
        except AgentError as error:
            yield EpisodeAbandoned(work=work, reason="agent", detail=str(error))
            return
        if result.output is not None:
            yield ScoreEpisode(work=work, session=opened.session, output=result.output)
        else:
            yield EpisodeScored(work=work, session=opened.session, reward=result.reward, rewards=result.rewards)
