"""The sandbox as a tool of an agent: text in, text out, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from areal_actors.sandbox.programs import Limits, ProgramResult, run_program

TOOL_LIMITS: Final = Limits(seconds=5.0, output_kb=64)
LONGEST_OUTPUT: Final = 2000


async def run_python(code: str, *, stdin: str = "", limits: Limits = TOOL_LIMITS, longest: int = LONGEST_OUTPUT) -> str:
    """Run a Python program of the model; returns its output, including errors, as the content of a tool message.

    The program has the standard library and a temporary folder, and nothing else of this machine. Cancellation kills
    it. Limit the number of concurrent programs with a semaphore: each has a process and a thread.

    Raises:
        SandboxError: no sandbox can be created here; failures of the program are returned as text.
    """
    read_end, write_end = os.pipe()
    thread = ThreadPoolExecutor(1, "sandbox")
    try:
        running = asyncio.wrap_future(
            thread.submit(run_program, code, stdin=stdin, limits=limits, errors=True, cancel_fd=read_end)
        )
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
