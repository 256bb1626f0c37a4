"""Runs each group with the workflow and the `should_accept` predicate of its submission."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.agent_host.agent_loader import make_agent
from areal_actors.core.agent_host.faults import AgentLoadError
from areal_actors.core.errors import AgentError
from areal_actors.core.loading import load_named
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import Task
from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout.agent_runner import AgentResult, AgentRunner
from areal_actors.rollout.episode_context import workflow_context
from areal_actors.rollout.group_runner import GroupRunner, runs_groups
from areal_actors.rollout.inline_runner import InlineRunner
from areal_actors.rollout.runners import runner_of

Accept = str | Callable[[dict[str, Any]], Any] | None
"""`should_accept(episode) -> bool`, itself or as `path.py:function`; see `areal_actors.rewards.acceptance`."""


RunnerKey = tuple[object, str, bool, int]
"""Workflow, options, True for evaluation in separate processes, episodes of a group."""


class _CachedRunner:
    """A runner with the number of groups that use it."""

    def __init__(self, workflow: Any, runner: AgentRunner) -> None:
        self.workflow = workflow
        self.runner = runner
        self.groups = 0


class WorkflowSpec(msgspec.Struct, frozen=True):
    """Runner and acceptance predicate of a group."""

    key: RunnerKey
    """Key of its runner."""
    accepts: Callable[[dict[str, Any]], Any] | None


class Workflows:
    """An `AgentRunner` that dispatches each episode to the workflow of its group."""

    def __init__(self, task: TaskSettings, root: Path, *, group_size: int) -> None:
        """`task` names the default workflow; paths are relative to `root`."""
        self.task = task
        self.root = root
        self.group_size = group_size
        self._runners: dict[RunnerKey, _CachedRunner] = {}
        self._specs: dict[str, WorkflowSpec] = {}
        """Workflow specification by group."""
        self._ended: list[AgentRunner] = []
        """Runners of dropped workflow objects, which are still to be closed."""
        self._start_lock = asyncio.Lock()

    async def ready(
        self,
        workflow: Any,
        options: Mapping[str, Any],
        accept: Accept,
        *,
        held_out: bool = False,
        group_size: int | None = None,
    ) -> WorkflowSpec:
        """Start the runner of a group's episodes; returns its specification.

        Args:
            workflow: an instance, a class or a function; their name, `path.py:Name` or `package.module:Name`; or None.
            options: keyword arguments of the class or function.
            accept: predicate on scored episodes, in place of the recipe's `task.should_accept`.
            held_out: True for evaluation; agents in subprocesses then get separate processes.
            group_size: episodes of the group, by default the recipe's.

        Raises:
            AgentError: the workflow is none of these, or its class raises.
            RecipeError: there is nothing of that name.
        """
        accept = accept if accept is not None else self.task.should_accept or None
        judge = load_named(accept, self.root) if isinstance(accept, str) else accept
        kind = workflow if workflow is None or isinstance(workflow, str) else id(workflow)
        apart = held_out and self.task.has_processes() and not isinstance(kind, int)
        size = self.group_size if group_size is None else group_size
        key = (kind, msgspec.json.encode(options, enc_hook=id).decode(), apart, size)
        async with self._start_lock:
            await self._close_ended()
            if key not in self._runners:
                runner = self._runner(workflow, options, size)
                await runner.start()
                self._runners[key] = _CachedRunner(workflow, runner)
        return WorkflowSpec(key=key, accepts=judge)

    def enter(self, group: str, spec: WorkflowSpec) -> None:
        """Assign a specification to a group."""
        self._specs[group] = spec
        self._runners[spec.key].groups += 1

    def leave(self, group: str) -> None:
        """Release an ended group; a workflow object without groups is dropped, a named one stays cached."""
        if (spec := self._specs.pop(group, None)) is None:
            return
        kept = self._runners[spec.key]
        kept.groups -= 1
        if not kept.groups and isinstance(spec.key[0], int):
            self._ended.append(self._runners.pop(spec.key).runner)

    async def _close_ended(self) -> None:
        while self._ended:
            await self._ended.pop().close()

    def _runner(self, workflow: Any, options: Mapping[str, Any], group_size: int) -> AgentRunner:
        if workflow is None or isinstance(workflow, str):
            return runner_of(self._task(workflow, options), self.root, group_size=group_size)
        name = getattr(workflow, "__qualname__", type(workflow).__qualname__)
        try:
            agent = make_agent(workflow, name, options)
        except AgentLoadError as error:
            raise AgentError(str(error)) from error
        return GroupRunner(agent, name, group_size=group_size) if runs_groups(agent) else InlineRunner(agent, name)

    def _task(self, workflow: str | None, options: Mapping[str, Any]) -> TaskSettings:
        if workflow is not None:
            return msgspec.structs.replace(
                self.task, agent=workflow, command=(), agent_options=dict(options), environment=""
            )
        if not self.task.agent and not self.task.command and not self.task.environment:
            raise AgentError(
                "no workflow was given, and the recipe has no `task.agent`: pass one to submit, or set `task.agent`"
            )
        return msgspec.structs.replace(self.task, agent_options={**self.task.agent_options, **options})

    # ------------------------------------------------------------ used by the actors

    async def start(self) -> None:
        """Does nothing: runners are started with the first group that uses them."""

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`."""
        group = workflow_context.get().group
        if (spec := self._specs.get(group)) is None:
            raise AgentError(f"group {group} was not submitted to this controller, or has ended")
        return await self._runners[spec.key].runner.run(task, base_url=base_url, api_key=api_key)

    def accepts(self, episode: dict[str, Any]) -> Any:
        """Returns the result of the group's `should_accept` for a scored episode; True without one."""
        spec = self._specs.get(episode["group"])
        return True if spec is None or spec.accepts is None else spec.accepts(episode)

    def take_blocks(self) -> list[EventLoopBlocked]:
        """Returns the event loop blocks of all runners."""
        return [report for kept in self._runners.values() for report in kept.runner.take_blocks()]

    async def close(self) -> None:
        """Close all runners."""
        await self._close_ended()
        for kept in self._runners.values():
            await kept.runner.close()
