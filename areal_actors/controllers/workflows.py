"""Each group runs with the workflow it was submitted with, and is accepted by the function it was submitted with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.agent_host.faults import Refused
from areal_actors.agent_host.naming import make_agent
from areal_actors.agent_runners.agent_runner import AgentResult, AgentRunner
from areal_actors.agent_runners.episode_context import workflow_context
from areal_actors.agent_runners.group_runner import GroupRunner, runs_groups
from areal_actors.agent_runners.inline_runner import InlineRunner
from areal_actors.agent_runners.runners import runner_of
from areal_actors.errors import AgentError
from areal_actors.loading import load_named
from areal_actors.messages import EventLoopBlocked
from areal_actors.settings import TaskSettings
from areal_actors.values import Task

Accept = str | Callable[[dict[str, Any]], Any] | None
"""`should_accept(episode) -> bool`, itself or as `path.py:function`; see `areal_actors.agent_runners.acceptance`."""


class _Kept:
    """A runner, and how many groups use it."""

    def __init__(self, workflow: Any, runner: AgentRunner) -> None:
        self.workflow = workflow
        self.runner = runner
        self.groups = 0


class Orders(msgspec.Struct, frozen=True):
    """How a group is run."""

    key: tuple[object, str, bool]
    """Of its runner."""
    accepts: Callable[[dict[str, Any]], Any] | None


class Workflows:
    """An `AgentRunner` that looks up which workflow runs the episode."""

    def __init__(self, task: TaskSettings, root: Path, *, group_size: int) -> None:
        """`task` names the workflow of groups that come without; paths count from `root`."""
        self.task = task
        self.root = root
        self.group_size = group_size
        self._kept: dict[tuple[object, str, bool], _Kept] = {}
        self._orders: dict[str, Orders] = {}
        """By group."""
        self._one_at_a_time = asyncio.Lock()

    async def ready(self, workflow: Any, options: Mapping[str, Any], accept: Accept, *, held_out: bool = False) -> Orders:
        """Make ready what a group's episodes are run with.

        Args:
            workflow: an instance, a class or a function; their name, `path.py:Name` or `package.module:Name`; or None.
            options: keyword arguments of the class or function.
            accept: what its scored episodes are judged by, in place of the recipe's `task.should_accept`.
            held_out: they are evaluated; agents in processes then have processes of their own for it.

        Raises:
            AgentError: it is none of these, or its class raises.
            RecipeError: there is nothing of that name.
        """
        accept = accept if accept is not None else self.task.should_accept or None
        judge = load_named(accept, self.root) if isinstance(accept, str) else accept
        kind = workflow if workflow is None or isinstance(workflow, str) else id(workflow)
        apart = held_out and self.task.runner == "subprocess" and not isinstance(kind, int)
        key = (kind, msgspec.json.encode(options, enc_hook=id).decode(), apart)
        async with self._one_at_a_time:
            if key not in self._kept:
                runner = self._runner(workflow, options)
                await runner.start()
                self._kept[key] = _Kept(workflow, runner)
        return Orders(key=key, accepts=judge)

    def enter(self, group: str, orders: Orders) -> None:
        """The group's episodes are run so from now on."""
        self._orders[group] = orders
        self._kept[orders.key].groups += 1

    def leave(self, group: str) -> None:
        """The group has ended; an object that no group uses is let go, what was named stays ready."""
        if (orders := self._orders.pop(group, None)) is None:
            return
        kept = self._kept[orders.key]
        kept.groups -= 1
        if not kept.groups and isinstance(orders.key[0], int):
            del self._kept[orders.key]

    def _runner(self, workflow: Any, options: Mapping[str, Any]) -> AgentRunner:
        if workflow is None or isinstance(workflow, str):
            return runner_of(self._task(workflow, options), self.root, group_size=self.group_size)
        name = getattr(workflow, "__qualname__", type(workflow).__qualname__)
        try:
            agent = make_agent(workflow, name, options)
        except Refused as error:
            raise AgentError(str(error)) from error
        return GroupRunner(agent, name, group_size=self.group_size) if runs_groups(agent) else InlineRunner(agent, name)

    def _task(self, workflow: str | None, options: Mapping[str, Any]) -> TaskSettings:
        if workflow is not None:
            return msgspec.structs.replace(self.task, agent=workflow, command=(), agent_options=dict(options))
        if not self.task.agent and not self.task.command:
            raise AgentError("no workflow was given, and the recipe's `task.agent` names none: hand one to submit, or name one there")
        return msgspec.structs.replace(self.task, agent_options={**self.task.agent_options, **options})

    # ------------------------------------------------------------ what the actors use

    async def start(self) -> None:
        """Runners are started with the first group that uses them."""

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`."""
        group = workflow_context.get().group
        if (orders := self._orders.get(group)) is None:
            raise AgentError(f"group {group} was not submitted to this controller, or has ended")
        return await self._kept[orders.key].runner.run(task, base_url=base_url, api_key=api_key)

    def accepts(self, episode: dict[str, Any]) -> Any:
        """What the group's `should_accept` says of a scored episode; one of a group without is wanted."""
        orders = self._orders.get(episode["group"])
        return True if orders is None or orders.accepts is None else orders.accepts(episode)

    def blocked(self) -> list[EventLoopBlocked]:
        """Of all runners."""
        return [report for kept in self._kept.values() for report in kept.runner.blocked()]

    async def close(self) -> None:
        """End whatever runs."""
        for kept in self._kept.values():
            await kept.runner.close()
