"""The sandbox as a tool of an agent: text in, text out, and the event loop goes on."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from areal_actors.sandbox.programs import Limits, ProgramResult, run_program

TOOL_LIMITS: Final = Limits(seconds=5.0, output_kb=64)
LONGEST_OUTPUT: Final = 2000


async def run_python(code: str, *, stdin: str = "", limits: Limits = TOOL_LIMITS, longest: int = LONGEST_OUTPUT) -> str:
    """What a Python program of the model prints, errors included, as the content of a tool's answer.

    It has the standard library, a folder of its own while it runs, and nothing else of this machine. Cancelling the call kills it.
    Bound how many run at once with a semaphore: each has a process and a thread.

    Raises:
        SandboxError: no sandbox can be made here; whatever the program does is an answer and no error.
    """
    read_end, write_end = os.pipe()
    thread = ThreadPoolExecutor(1, "sandbox")
    try:
        running = asyncio.wrap_future(thread.submit(run_program, code, stdin=stdin, limits=limits, errors=True, cancel_fd=read_end))
        try:
            ran = await asyncio.shield(running)
        except asyncio.CancelledError:
            os.close(write_end)
            write_end = -1
            await asyncio.wait({running})
            raise
    finally:
        thread.shutdown(wait=False)
        for descriptor in (read_end, write_end):
            if descriptor >= 0:
                os.close(descriptor)
    return _answer(ran, limits, longest)


def _answer(ran: ProgramResult, limits: Limits, longest: int) -> str:
    if ran.timed_out:
        return f"error: the program ran for more than {limits.seconds:g} seconds"
    if ran.over_quota:
        return f"error: the program wrote more than {limits.files} files or {limits.disk_mb} MB"
    printed = ran.output[: 4 * longest].decode(errors="replace")[:longest]
    return printed or f"the program printed nothing and ended with {ran.status}"
