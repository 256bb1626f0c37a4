"""Runs workflows on whole groups (`arun_group`), such as those that compare the members or let them debate.

The members of a group arrive as separate episodes at the one rollout worker of the run. They wait here for each other;
then the workflow gets an engine for each, and each episode continues with its own result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from areal_actors.core.agent_host.agent_loader import check_end, make_engine, run_workflow
from areal_actors.core.errors import AgentError, RewardError
from areal_actors.core.values import Task
from areal_actors.rollout.agent_runner import AgentResult, LoadedRunner, parse_result
from areal_actors.rollout.episode_context import workflow_context
from areal_actors.rollout.inline_runner import await_agent


def runs_groups(agent: Any) -> bool:
    """True if an agent implements `arun_group`."""
    return callable(getattr(agent, "arun_group", None)) and getattr(agent, "runs_groups", True)


class GroupGathering:
    """The members of one group that have arrived, by episode."""

    def __init__(self) -> None:
        self.engines: dict[str, Any] = {}
        self.results: dict[str, asyncio.Future[AgentResult]] = {}
        self.task: asyncio.Task[None] | None = None

    def has_waiters(self) -> bool:
        """True while a caller waits for a result."""
        return any(not result.done() for result in self.results.values())


class GroupRunner(LoadedRunner):
    """Runs groups through `arun_group`; held-out episodes and retries run alone, through `arun_episode`."""

    def __init__(self, agent: Any, name: str, *, group_size: int, model_errors: Sequence[str] = ()) -> None:
        self.agent = agent
        self.model_errors = model_errors
        self.name = name
        self.group_size = group_size
        self._gatherings: dict[str, GroupGathering] = {}

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`; the group runs while any caller waits for a member."""
        episode = workflow_context.get()
        place = make_engine(dict(task.data), base_url, api_key)
        if episode.is_eval or episode.attempt > 1:
            returning = run_workflow(self.agent.arun_episode, place, dict(task.data))
            return parse_result(self.name, await await_agent(self.name, returning, self.model_errors))
        gathering = self._gatherings.setdefault(episode.group, GroupGathering())
        gathering.engines[episode.episode] = place
        result = gathering.results[episode.episode] = asyncio.get_running_loop().create_future()
        if len(gathering.engines) == self.group_size:
            del self._gatherings[episode.group]
            gathering.task = asyncio.create_task(self._run_group(gathering, dict(task.data)))
        try:
            outcome: AgentResult = await result
        finally:
            if gathering.task is None:
                self._leave(episode.group, episode.episode)
            elif not gathering.has_waiters():
                gathering.task.cancel()
        return outcome

    def _leave(self, group: str, episode: str) -> None:
        """Remove a member that was cancelled before the group was complete."""
        gathering = self._gatherings[group]
        del gathering.engines[episode], gathering.results[episode]
        if not gathering.engines:
            del self._gatherings[group]

    async def _run_group(self, gathering: GroupGathering, data: dict[str, Any]) -> None:
        """Run the workflow and set every member's result or error."""
        members = sorted(gathering.engines)
        try:
            returning = self.agent.arun_group([gathering.engines[member] for member in members], data)
            returned = await await_agent(self.name, returning, self.model_errors)
            if not isinstance(returned, Sequence) or len(returned) != len(members):
                raise AgentError(
                    f"agent {self.name} returned {returned!r:.200} from `arun_group`; return a list of {len(members)}"
                    " results"
                )
        except AgentError as error:
            outcomes: list[Any] = [error] * len(members)
        else:
            outcomes = list(returned)
        for member, outcome in zip(members, outcomes, strict=True):
            if not (result := gathering.results[member]).done():
                self._set_result(result, outcome, gathering.engines[member])

    def _set_result(self, result: asyncio.Future[AgentResult], outcome: Any, engine: Any) -> None:
        try:
            if isinstance(outcome, AgentError):
                raise AgentError(str(outcome), outcome.traits)
            check_end(engine)
            result.set_result(parse_result(self.name, outcome))
        except AgentError as error:
            result.set_exception(error)
        except RewardError as error:
            result.set_exception(AgentError(f"agent {self.name}: {error}"))
