"""Coroutine rewards, such as judges that call a model.

Any number of them run at once in one process, each with its deadline. A judge that hangs in an `await` is cancelled;
one that blocks the event loop, or ends its process, costs the process: it is replaced, and the others' scores start
again. A process that leaks memory or file descriptors is replaced once its scores are done.
"""

from __future__ import annotations

import ast
import asyncio
import multiprocessing
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.rewards.judge_process import READY, ScoreRequest, ScoreResult, run_judges

GRACE_SECONDS = 5.0
"""Time beyond a judge's deadline, in which the process has to name what blocks it, before it is killed."""
MEMORY_GROWTH_BYTES = 1 << 30
"""Growth of the process since its first score from which it is replaced."""
OPEN_FILES_SHARE = 0.5
"""Share of the limit of file descriptors from which it is replaced."""


class HostLost(Exception):
    """Raised for a score whose process ended before it was there."""

    def __init__(self, *, is_named: bool) -> None:
        super().__init__()
        self.is_named = is_named
        """True if another score is known to have ended the process."""


class SpawnFailed(Exception):
    """Raised where a process of rewards cannot be started, as without file descriptors.

    The calling process ends and is replaced.
    """


def is_coroutine_reward(reward: str, root: Path) -> bool:
    """True if `reward` is named `path.py:function` and the file defines it by `async def`; nothing is executed."""
    path, _, name = reward.rpartition(":")
    file = root / path
    if not path.endswith(".py") or not file.is_file():
        return False
    try:
        module = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return False
    defined = [
        node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    return bool(defined) and isinstance(defined[-1], ast.AsyncFunctionDef)


class JudgeHost:
    """One process that runs coroutine rewards together; it starts with the first score and again after each loss."""

    def __init__(self, reward: str, root: Path, options: bytes, timeout_seconds: float) -> None:
        self._arguments = (reward, root, options, timeout_seconds)
        self.timeout_seconds = timeout_seconds
        self._number = 0
        self._process: _JudgeProcess | None = None
        self._retired: set[_JudgeProcess] = set()

    async def score(self, task: Mapping[str, Any], output: str) -> ScoreResult:
        """Returns the result.

        Raises:
            HostLost: the process ended first.
            SpawnFailed: there is no process, and none can be started.
        """
        process = self._ready()
        await process.wait_ready()
        self._number += 1
        result = await process.ask(ScoreRequest(self._number, dict(task), output), self.timeout_seconds + GRACE_SECONDS)
        if process is self._process and process.leaks(result):
            self._process = None
            self._retired.add(process)
        for retired in [candidate for candidate in self._retired if not candidate.waiting]:
            self._retired.discard(retired)
            await retired.close()
        return result

    async def close(self) -> None:
        """End all processes."""
        for process in filter(None, (self._process, *self._retired)):
            await process.close()
        self._process = None

    def _ready(self) -> _JudgeProcess:
        if self._process is None or self._process.lost:
            self._process = _JudgeProcess(*self._arguments)
        return self._process


class _JudgeProcess:
    def __init__(self, reward: str, root: Path, options: bytes, timeout_seconds: float) -> None:
        self.waiting: dict[int, asyncio.Future[ScoreResult]] = {}
        self.lost = False
        self._is_named = False
        self._first_memory = 0
        self._loop = asyncio.get_running_loop()
        self._started = self.waiting[READY] = self._loop.create_future()
        context = multiprocessing.get_context("spawn")
        try:
            self._connection, child_end = context.Pipe()
            self._process = context.Process(
                target=run_judges, args=(child_end, reward, root, options, timeout_seconds), daemon=True
            )
            self._process.start()
        except OSError as error:
            raise SpawnFailed(
                f"a process for coroutine rewards cannot be started: {error.strerror or error}"
            ) from error
        child_end.close()
        self._decode: Callable[[bytes], ScoreResult] = msgspec.msgpack.Decoder(ScoreResult).decode
        self._loop.add_reader(self._connection.fileno(), self._receive)

    async def ask(self, request: ScoreRequest, seconds: float) -> ScoreResult:
        answer: asyncio.Future[ScoreResult] = self._loop.create_future()
        self.waiting[request.number] = answer
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(request))
            async with asyncio.timeout(seconds):
                return await answer
        except (OSError, ValueError, TimeoutError) as error:
            self._lose()
            raise HostLost(is_named=self._is_named) from error
        finally:
            self.waiting.pop(request.number, None)

    async def wait_ready(self) -> None:
        """Wait until the reward is loaded.

        Raises HostLost if the process ends before, or takes longer than `START_SECONDS`.
        """
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(self._started)
        except TimeoutError as error:
            self._lose()
            raise HostLost(is_named=False) from error

    def leaks(self, result: ScoreResult) -> bool:
        """True for a score that does not end, and once the process has grown so much that it is to be replaced."""
        if result.ends:
            return True
        self._first_memory = self._first_memory or result.memory_bytes
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            result.memory_bytes > self._first_memory + MEMORY_GROWTH_BYTES
            or result.open_files > limit * OPEN_FILES_SHARE
        )

    async def close(self) -> None:
        self._lose()
        await asyncio.to_thread(self._process.join)
        self._process.close()

    def _receive(self) -> None:
        try:
            while self._connection.poll():
                result = self._decode(self._connection.recv_bytes())
                self._is_named = self._is_named or result.ends
                answer = self.waiting.get(result.number)
                if answer is not None and not answer.done():
                    answer.set_result(result)
                if result.number == READY:
                    self.waiting.pop(READY, None)
        except (EOFError, OSError):
            self._lose()

    def _lose(self) -> None:
        """End the process, and fail the scores that wait for it."""
        if not self.lost:
            self.lost = True
            with suppress(OSError, ValueError):
                self._loop.remove_reader(self._connection.fileno())
            self._process.kill()
            self._connection.close()
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(HostLost(is_named=self._is_named))


START_SECONDS = 60.0
"""Time for the start of a process, in which the reward's file is imported."""
