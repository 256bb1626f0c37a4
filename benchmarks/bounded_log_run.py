"""A whole run whose processes are those of `orchestration_process.py`.

Everything is real except the model and the gradient.
Started by `bounded_log.py` as `python benchmarks/bounded_log_run.py RUN_FOLDER`; the recipe is in that folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import uvloop

from areal_actors.folder.process_logs import log_to_terminal
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import RunResumed, RunStarted
from areal_actors.recovery.log_recovery import recover_log
from areal_actors.run.run_loop import RunLoop
from areal_actors.supervision.child_processes import ProcessStart, environment_of
from areal_actors.supervision.run_session import open_bus
from areal_actors.supervision.supervisor import Supervisor


class ScriptedSupervisor(Supervisor):
    """Starts processes with a scripted model and no gradient."""

    def start_of(self, name: str) -> ProcessStart:
        """Returns program and environment of a process."""
        start = super().start_of(name)
        environment = dict(start.environment)
        modules = os.pathsep.join(filter(None, [str(Path(__file__).parent), environment.get("PYTHONPATH")]))
        return ProcessStart(
            "orchestration_process", start.arguments, environment_of(environment, {"PYTHONPATH": modules})
        )


class ScriptedRunLoop(RunLoop):
    """A run loop with these processes."""

    def make_supervisor(self) -> Supervisor:
        """Create the supervisor of this launch."""
        return ScriptedSupervisor(self.recipe, self.folder, self.publish, self.server.addresses)


async def run(folder: RunFolder, *, resumed: bool) -> int:
    """Start or resume the run and wait for its end."""
    recipe = folder.recipe()
    settings = msgspec.to_builtins(recipe)
    started = RunStarted(recipe=settings, profile="benchmark", reason="measured", folder=str(folder.path))
    if resumed:
        await recover_log(recipe, folder)
    async with open_bus(recipe, folder, fresh=False) as (bus, server):
        loop = ScriptedRunLoop(recipe, folder, bus, server)
        return await loop.run(RunResumed(recipe=settings, reason="", folder=str(folder.path)) if resumed else started)


if __name__ == "__main__":
    log_to_terminal()
    run_folder = RunFolder(Path(sys.argv[1]))
    with run_folder.hold(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(run(run_folder, resumed="resume" in sys.argv[2:])))
