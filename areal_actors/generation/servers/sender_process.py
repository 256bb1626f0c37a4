"""The process that sends weights to one inference server.

It is started when it is needed, and killed when a request is late.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from areal_actors.core.errors import WeightTransferFailed
from areal_actors.core.module_command import module_command
from areal_actors.weights.sending import Answer, Request, SenderDone, SenderFailed

LINE_BYTES = 64 * 2**20
"""Longest answer: handles of the tensors of a part."""
Expected = TypeVar("Expected")


class SenderProcess:
    """See `areal_actors.weights.sender`.

    A process that failed is killed; the next request starts another, which holds nothing.
    """

    def __init__(self, device: str, log: Path) -> None:
        self._device, self._log = device, log
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()
        self._ending: set[asyncio.Task[int]] = set()
        """Waits for processes that were killed; without them their pipes stay open."""

    @property
    def pid(self) -> int:
        """Process id; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    async def ask(self, request: Request, expected: type[Expected] = SenderDone) -> Expected:  # type: ignore[assignment]
        """Returns the answer to a request; a caller that no longer waits for it ends the process.

        Raises:
            WeightTransferFailed: the request failed, or the process ended.
        """
        async with self._asking:
            process = self._process or await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(msgspec.json.encode(request) + b"\n")
                line = await process.stdout.readline()
            except BaseException as error:
                self.kill()
                if isinstance(error, OSError):
                    raise WeightTransferFailed(
                        f"the sender of weights is gone ({error}); its output is {self._log}"
                    ) from error
                raise
        if not line:
            self.kill()
            raise WeightTransferFailed(
                f"the sender of weights ended in `{type(request).__name__}`; its output is {self._log}"
            )
        answer = msgspec.json.decode(line, type=Answer)
        if isinstance(answer, expected):
            return answer
        raise WeightTransferFailed(
            answer.reason if isinstance(answer, SenderFailed) else f"the sender of weights answered {answer}"
        )

    async def _start(self) -> asyncio.subprocess.Process:
        command = module_command("areal_actors.weights.sender", self._device)
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=output,
                    limit=LINE_BYTES,
                    start_new_session=True,  # Ctrl-C goes to the run, which ends it in order
                )
        except OSError as error:
            raise WeightTransferFailed(f"cannot start the sender of weights: {error}") from error
        return self._process

    def kill(self) -> None:
        """End the process; its peers see that the connection is closed."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(
                    process.pid, signal.SIGKILL
                )  # the process's own `kill` takes its exit status, for which the event loop waits
            ending = asyncio.get_running_loop().create_task(process.wait())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End the process and wait until it, and all that were killed before, have ended."""
        self.kill()
        await asyncio.gather(*self._ending)
