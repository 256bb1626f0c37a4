r"""Is the answer's final expression mathematically the task's? Read and compared by `math-verify`.

The task's `answer` is the expression itself (`\frac{1}{2}`, `x^2 + 1`, `(1, 2]`), or a solution that says where it stands:
in `\boxed{}`, in `$…$`, or after four hashes as in GSM8K, which count first. One that cannot be read is an error and not a
wrong answer; so is one that takes too long. An answer of the model that cannot be read, or not compared in time, is wrong.

The package stops itself by SIGALRM, which works in a main thread only; reward processes (`engines/reward_pool.py`) score in
theirs. Here one alarm bounds reading and comparing together; what does not heed it is killed with its process, a failure.
"""

from __future__ import annotations

import importlib
import logging
import re
import resource
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from areal_actors.config import Config, PositiveFloat, PositiveInt
from areal_actors.errors import RecipeError, RewardError, SetupError
from areal_actors.rewards.checks import task_name

_HASHES = re.compile(r"#{4,}[ \t]*([^\n]*\w[^\n]*)")
_PROSE = re.compile(r"(?:^|\s)[A-Za-z]{3,}(?=[\s.,;:!?]|$)")
_STATED = re.compile(r"\\boxed|\\fbox|\$|\\\(|\\\[")

SPARE_BYTES = 2 << 30
"""What a process may take beyond what it has while it reads and compares."""


class OutOfTimeError(BaseException):
    """Raised by the alarm; no `except Exception` of the library stops it."""


class MathEquivalence(Config):
    """`task.reward = "math"`; these are its `[task.reward_options]`."""

    field: str = "answer"
    """The task's field that holds the truth."""
    seconds: PositiveFloat = 4.0
    """For one answer to be read and compared."""
    characters: PositiveInt = 20_000
    """Of an answer's end that are read; a longer one states its result there."""

    def prepare(self) -> None:
        """Load the library, and let it read and compare once, while nothing is timed.

        Raises:
            RecipeError: it is not installed.
            SetupError: it does not work, as without its grammar.
        """
        library()
        if not _equal(_truth(r"\frac{1}{2}"), _read("$0.5$")):
            raise SetupError("task.reward: math-verify does not find that 1/2 is 0.5; install it anew: pip install 'areal-actors[rewards]'")

    def __call__(self, task: Mapping[str, Any], output: str) -> float:
        """1.0 when they are equal, else 0.0.

        Raises:
            RewardError: the task's answer cannot be read as mathematics.
        """
        solution = task.get(self.field)
        try:
            with bounds(self.seconds):
                truth = _truth(solution) if isinstance(solution, str) else ()
        except OutOfTimeError:
            truth = ()
        if not truth:
            found = repr(solution[-60:]) if isinstance(solution, str) else type(solution).__name__
            raise RewardError(
                f"task {task_name(task)}: `{self.field}` must be an expression, or end with `#### …` or `\\boxed{{…}}`, got {found}"
            )
        try:
            with bounds(self.seconds):
                return float(_equal(truth, _stated_by(output[-self.characters :])))
        except (OutOfTimeError, Exception):  # noqa: BLE001 - what the library says to a text of a model is about that text
            return 0.0


@cache
def library() -> Any:
    """The `math_verify` package.

    Raises:
        RecipeError: it, or the grammar that it needs, is not installed.
    """
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that nothing is timed; `bounds` does that
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("math_verify")
    except ImportError as error:
        raise RecipeError(
            "`task.reward`: `math` needs the math-verify package; pip install 'areal-actors[rewards]' "
            "(in a clone: .venv/bin/pip install -e '.[rewards]')"
        ) from error


@contextmanager
def bounds(seconds: float) -> Iterator[None]:
    """Raise `OutOfTimeError` in this (the main) thread once the time is up, and MemoryError where it takes too much."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = min(limit for limit in (soft, hard, _address_space() + SPARE_BYTES) if limit != resource.RLIM_INFINITY)
    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.getitimer(signal.ITIMER_REAL)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """Bytes; as if it were endless where there is no /proc to say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 60


@lru_cache(maxsize=1024)
def _truth(solution: str) -> tuple[Any, ...]:
    """What a solution states, as expressions; empty when it cannot be read. A group asks it again and again."""
    read = _after_hashes(solution) or _read_alone(solution.strip())
    return tuple(expression for expression in read if not isinstance(expression, str))


def _stated_by(answer: str) -> list[Any]:
    return _after_hashes(answer) or _read(answer)


def _after_hashes(text: str) -> list[Any]:
    """What stands on the last line that begins with four hashes; empty if none does, or it cannot be read."""
    stated = _HASHES.findall(text)
    return _read_alone(stated[-1].strip("$*_` .")) if stated else []


def _read_alone(text: str) -> list[Any]:
    """A text that is nothing but an expression, or says where it has one, or has a number among its words."""
    return _read(text) if _STATED.search(text) or _PROSE.search(text) else _read(f"${text}$")


def _read(text: str) -> list[Any]:
    read: list[Any] = library().parse(text, parsing_timeout=None)
    return read


def _equal(truth: tuple[Any, ...], answer: list[Any]) -> bool:
    return bool(answer) and bool(library().verify(list(truth), answer, timeout_seconds=None))
