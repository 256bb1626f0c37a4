"""The process of coroutine rewards: runs all of them together in one event loop; started by `judge_host.py`.

Scores arrive over a pipe and results leave over it. A thread watches the loop: a coroutine that blocks it is named
before the process ends.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.errors import ArealError
from areal_actors.core.span_rewards import SpanReward
from areal_actors.rewards import Reward, Score, check_score, resolve_reward
from areal_actors.rewards.judge_usage import start_usage

READY = 0
"""Number of the first message, once the reward is loaded."""
CANCEL_SECONDS = 1.0
"""Time that a cancelled coroutine has to end; the process is replaced if it does not."""
WATCH_SECONDS = 0.2
"""Time between two looks at the event loop."""


class ScoreRequest(msgspec.Struct, array_like=True):
    """An output to score."""

    number: int
    task: dict[str, Any]
    output: str


class ScoreResult(msgspec.Struct, array_like=True):
    """A score, or the reason why there is none."""

    number: int
    reward: float = 0.0
    metrics: dict[str, float] = {}
    failure: str = ""
    seconds: float = 0.0
    """Time in which the coroutine ran."""
    memory_bytes: int = 0
    """Resident memory of the process."""
    open_files: int = 0
    """Its file descriptors."""
    ends: bool = False
    """True if the coroutine blocked the event loop, so that the process ends with this result, or goes on in spite of
    its cancellation."""
    spans: tuple[SpanReward, ...] = ()
    places: dict[str, float] = {}


def run_judges(connection: Connection, reward: str, root: Path, options: bytes, timeout_seconds: float) -> None:
    """Score what arrives until the connection ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        function: Reward | None = resolve_reward(reward, root, msgspec.msgpack.decode(options))
        failure = ""
    except ArealError as error:
        function, failure = None, f"failed: {error}"
    # The user's file may raise anything: pytest's outcomes are no `Exception`
    except BaseException as error:  # noqa: BLE001
        function, failure = None, f"raised {type(error).__name__}: {error}"
    _run(_Judges(connection, function, failure, timeout_seconds).run())


def _run(judges: Coroutine[Any, Any, None]) -> None:
    """Run to the end.

    A task that a judge started and that raises `SystemExit` ends that task, not the loop of all judges.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    running = loop.create_task(judges)
    while not running.done():
        with suppress(
            SystemExit, KeyboardInterrupt
        ):  # asyncio re-raises these from the loop; the task's awaiter has them, too
            loop.run_until_complete(running)


class _Judges:
    def __init__(self, connection: Connection, function: Reward | None, failure: str, timeout_seconds: float) -> None:
        self.connection, self.function, self.failure, self.timeout_seconds = (
            connection,
            function,
            failure,
            timeout_seconds,
        )
        self.sending = threading.Lock()
        self.tasks: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()
        self.beat = time.monotonic()
        """Time at which the event loop last ran."""

    async def run(self) -> None:
        """Run until the other end of the connection is closed."""
        loop = asyncio.get_running_loop()
        self._send(ScoreResult(READY))
        threading.Thread(target=self._receive, args=(loop,), daemon=True).start()
        threading.Thread(target=self._watch, args=(loop,), daemon=True).start()
        await self.ended.wait()
        os._exit(0)  # leftover tasks and threads of judges do not keep the process

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        decode = msgspec.msgpack.Decoder(ScoreRequest).decode
        try:
            while True:
                loop.call_soon_threadsafe(self._start, decode(self.connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)

    def _start(self, request: ScoreRequest) -> None:
        task = asyncio.create_task(self._score(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _score(self, request: ScoreRequest) -> None:
        result, started = ScoreResult(request.number, failure=self.failure), time.monotonic()
        if self.function is not None:
            usage = start_usage()
            running = asyncio.create_task(self._call(self.function, request), name=str(request.number))
            done, _ = await asyncio.wait({running}, timeout=self.timeout_seconds)
            if not done:
                running.cancel()
                done, _ = await asyncio.wait({running}, timeout=CANCEL_SECONDS)
                result.failure = f"hung for more than {self.timeout_seconds:g} s and was cancelled"
                result.ends = not done
            else:
                score, result.failure = (
                    running.result() if not running.cancelled() else (Score(0.0), "was cancelled by its own code")
                )
                result.reward, result.metrics = float(score), {**usage.metrics(), **score.metrics}
                result.spans, result.places = score.spans, dict(score.places)
        result.seconds = time.monotonic() - started
        self._send(result)

    async def _call(self, function: Reward, request: ScoreRequest) -> tuple[Score, str]:
        """Returns the score and a failure text, empty without a failure."""
        try:
            value = function(request.task, request.output)
            return check_score(await value if inspect.isawaitable(value) else value), ""
        except ArealError as error:
            return Score(0.0), f"failed: {error}"
        except (asyncio.CancelledError, GeneratorExit):
            raise
        # The user's function may raise anything: pytest's outcomes are no `Exception`
        except BaseException as error:  # noqa: BLE001
            return Score(0.0), f"raised {type(error).__name__}: {error}"

    def _send(self, result: ScoreResult) -> None:
        result.memory_bytes, result.open_files = _usage()
        with self.sending:
            self.connection.send_bytes(msgspec.msgpack.encode(result))

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the process, with the name of the task, if the event loop does not run for the time of a judge."""
        while True:
            loop.call_soon_threadsafe(self._mark)
            time.sleep(WATCH_SECONDS)
            if time.monotonic() - self.beat <= self.timeout_seconds:
                continue
            task = asyncio.current_task(loop)
            number = task.get_name() if task else ""  # that of `_call`
            if number.isdigit():
                failure = f"blocked the event loop for more than {self.timeout_seconds:g} s and was killed"
                self._send(ScoreResult(int(number), failure=failure, seconds=self.timeout_seconds, ends=True))
            os._exit(1)

    def _mark(self) -> None:
        self.beat = time.monotonic()


def _usage() -> tuple[int, int]:
    """Returns resident bytes and open file descriptors of this process; zeros where there is no /proc."""
    try:
        resident = int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only, and often
    except OSError:
        return 0, 0
