"""The trackers of a run, in a process beside it: none of them can delay or end the run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from areal_actors.core.module_command import module_command
from areal_actors.folder.next_commands import run_command
from areal_actors.folder.run_folder import RunFolder
from areal_actors.recipe.recipe import Recipe
from areal_actors.supervision.supervisor import CREDENTIAL_VARIABLES

PROCESS = "track"
"""Name of its files in the folder of logs."""
RELAYED_BYTES = 2**16
MARGIN_SECONDS = 15.0
"""Time beyond `track.stop_seconds` for the process to kill a tracker that has not ended, and to report it."""


@asynccontextmanager
async def track_run(recipe: Recipe, folder: RunFolder) -> AsyncIterator[None]:
    """Send the run to the trackers of its recipe.

    At the end, when everything is written, wait for them within `track.stop_seconds`.
    """
    if not recipe.track.to:
        yield
        return
    environment = {variable: value for variable, value in os.environ.items() if variable not in CREDENTIAL_VARIABLES}
    with folder.output_of(PROCESS).open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *module_command("areal_actors.track.process", str(folder.path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        relaying, ending = asyncio.create_task(_relay(process)), asyncio.Event()
        watching = asyncio.create_task(_report_death(process, recipe, ending))
        try:
            yield
        finally:
            assert process.stdin is not None
            ending.set()
            process.stdin.close()
            await _end(process, recipe)
            await asyncio.gather(relaying, watching)


async def _relay(process: asyncio.subprocess.Process) -> None:
    """Write what the process reports to standard error, beside the run's own display."""
    assert process.stderr is not None
    while part := await process.stderr.read(RELAYED_BYTES):
        sys.stderr.write(part.decode(errors="replace"))


async def _report_death(process: asyncio.subprocess.Process, recipe: Recipe, ending: asyncio.Event) -> None:
    """Name the trackers if their process ends before the run."""
    status = await process.wait()
    if status and not ending.is_set():
        _report(recipe, f"their process ended with status {status}; the run is not affected")


def _report(recipe: Recipe, what: str) -> None:
    names, again = (
        ", ".join(recipe.track.to),
        run_command("export", recipe.run, recipe.folder, "--to", ",".join(recipe.track.to)),
    )
    sys.stderr.write(f"trackers {names}: {what}; `{again}` sends the rest\n")


async def _end(process: asyncio.subprocess.Process, recipe: Recipe) -> None:
    try:
        await asyncio.wait_for(process.wait(), recipe.track.stop_seconds + MARGIN_SECONDS)
    except TimeoutError:
        _report(recipe, f"did not end within track.stop_seconds = {recipe.track.stop_seconds:g} and were killed")
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
