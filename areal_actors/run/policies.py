"""The runs of the policies of a run: started once it has weights, started again when they die, ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog

from areal_actors.core.durable_files import PRIVATE_MODE, atomic_write
from areal_actors.core.errors import SetupError
from areal_actors.core.free_ports import find_free_ports
from areal_actors.core.module_command import module_command
from areal_actors.folder.next_commands import run_command
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import StepCompleted, WeightsPublished
from areal_actors.policies.call_router import PolicyAddress
from areal_actors.recipe.policies import POLICIES, policy_recipe
from areal_actors.recipe.recipe import Recipe
from areal_bus.base import Bus

MAX_RESTARTS = 5
"""Number of starts after deaths that a policy's launcher may have; its own processes have a supervision tree."""
RESTART_SECONDS = 1.0
MOST_STARTS = 10_000
END_SECONDS = 60.0
"""Time in which the run of a policy saves a checkpoint and ends."""
MODELS = "models"

logger = structlog.get_logger(__name__)


class StepLine(msgspec.Struct):
    """The part of a line of `metrics.jsonl` that is read."""

    kind: str = ""
    step: int = 0
    metrics: dict[str, Any] = {}


class PolicyRuns:
    """The launchers of the policies with processes, by name."""

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        self.recipe = recipe
        self.place = folder.path / POLICIES
        self.names = [name for name, settings in recipe.policies.items() if settings.has_processes()]
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when a policy cannot go on."""
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.ending = False

    async def supervise(self, bus: Bus) -> None:
        """Start them once the run has weights, and again when they die."""
        async with bus.events(WeightsPublished, consumer="policies", history="all") as inbox:
            async for delivery in inbox:
                await delivery.acknowledge()
                break
        await asyncio.gather(*(self._keep(name) for name in self.names))

    def fail_with(self, task: asyncio.Task[None]) -> None:
        """Report the error of a task that supervised them, which would leave them unwatched."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_result(f"the policies of the run cannot be supervised: {error}")

    async def _keep(self, name: str) -> None:
        """Keep the launcher of one policy alive."""
        for _ in range(MAX_RESTARTS + 1):
            process = await self._start(name)
            status = await process.wait()
            if self.ending:
                return
            logger.warning("the run of a policy has ended", policy=name, status=status)
            await asyncio.sleep(RESTART_SECONDS)
        if not self.failed.done():
            self.failed.set_result(f"policy '{name}' ended {MAX_RESTARTS + 1} times; see {self.place / name}.out")

    async def _start(self, name: str) -> asyncio.subprocess.Process:
        self.place.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):  # an embedded model is made once
            (self.place / MODELS).symlink_to(Path("..", "..", MODELS))
        recipe = policy_recipe(self.recipe, name)
        if recipe.is_served():
            recipe = msgspec.structs.replace(recipe, run=self._free_name(recipe.run))
        port, key = find_free_ports(1, recipe.gateway.host), secrets.token_hex(16)
        recipe = msgspec.structs.replace(
            recipe, gateway=msgspec.structs.replace(recipe.gateway, port=port, admin_key=key)
        )
        atomic_write(self.place / f"{name}.recipe", msgspec.json.encode(recipe), mode=PRIVATE_MODE)
        address = PolicyAddress(url=recipe.gateway.url(port), admin_key=key)
        with (self.place / f"{name}.out").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *module_command("areal_actors.run.policy_process", str(self.place / f"{name}.recipe")),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "NO_COLOR": "1"},
            )
        self.processes[name] = process
        atomic_write(self.place / f"{name}.json", msgspec.json.encode(address), mode=PRIVATE_MODE)
        return process

    def _free_name(self, run: str) -> str:
        """Returns a name that no earlier start has: a log that trains nothing is not continued."""
        names = (run, *(f"{run}-{number}" for number in range(1, MOST_STARTS)))
        return next(name for name in names if not (self.place / name).exists())

    async def end(self) -> None:
        """Have all end in order, each with a checkpoint; those that do not are killed."""
        self.ending = True
        running = [process for process in self.processes.values() if process.returncode is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        ends = [asyncio.create_task(process.wait()) for process in running]
        if ends:
            await asyncio.wait(ends, timeout=END_SECONDS)
        for process in running:
            if process.returncode is None:
                process.kill()
                await process.wait()
        for name in self.names:
            (self.place / f"{name}.json").unlink(missing_ok=True)
            (self.place / f"{name}.recipe").unlink(missing_ok=True)

    def describe_ends(self) -> list[str]:
        """Returns a line about each trained one: its steps, its rewards, and the command that audits it."""
        lines = []
        for name in self.names:
            if self.recipe.policies[name].kind == "trained":
                run = f"{self.recipe.run}-{name}"
                learnt = _describe_steps(RunFolder(self.place / run).metrics)
                lines.append(f"policy '{name}': {learnt}; {run_command('audit', run, str(self.place))}")
        return lines


def _describe_steps(metrics: Path) -> str:
    """Returns the number of the steps in a run's metrics, and the rewards of the first and the last."""
    try:
        lines = [msgspec.json.decode(line, type=StepLine) for line in metrics.read_bytes().splitlines()]
    except (OSError, msgspec.DecodeError):
        return "no steps"
    rewards = {line.step: line.metrics.get("reward_mean", 0.0) for line in lines if line.kind == StepCompleted.subject}
    if not rewards:
        return "no steps"
    first, last = rewards[min(rewards)], rewards[max(rewards)]
    return f"{len(rewards)} steps, mean reward {first:.3f} → {last:.3f}"


@asynccontextmanager
async def policy_runs(recipe: Recipe, folder: RunFolder, bus: Bus) -> AsyncIterator[asyncio.Future[str]]:
    """Run the policies of a run beside it; yields a future with the reason why one cannot go on.

    Raises:
        SetupError: a policy's changes to the recipe are invalid.
    """
    runs = PolicyRuns(recipe, folder)
    try:
        for name in runs.names:
            policy_recipe(recipe, name)
    except msgspec.ValidationError as error:
        raise SetupError(f"policies: {error}") from error
    supervising = asyncio.create_task(runs.supervise(bus)) if runs.names else None
    if supervising is not None:
        supervising.add_done_callback(runs.fail_with)
    try:
        yield runs.failed
    finally:
        if supervising is not None:
            runs.ending = True
            supervising.cancel()
            await asyncio.gather(supervising, return_exceptions=True)
            await runs.end()
            for line in runs.describe_ends():
                sys.stdout.write(f"{line}\n")
