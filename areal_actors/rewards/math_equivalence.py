r"""Is the answer's final expression mathematically the task's? Read and compared by `math-verify`.

The task's `answer` is the expression itself (`\frac{1}{2}`, `x^2 + 1`, `(1, 2]`), or a solution that says where it stands:
after four hashes as in GSM8K or in `\boxed{}`, of which the later counts, else in `$…$`. Of several boxes the last alone
counts; where the truth is a set, all of them together may state it. A truth that cannot be read is an error and not a
wrong answer; so is one that takes too long. An answer of the model that cannot be read, or not compared in time, is wrong.

A signal, which works in a main thread only, bounds reading and comparing together; reward processes (`engines/reward_pool.py`)
score in theirs. What is counted are CPU seconds, so that a busy machine does not make a right answer wrong. What does not heed the
signal is killed with its process, a failure.
"""

from __future__ import annotations

import importlib
import logging
import resource
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from areal_actors.config import Config, PositiveFloat, PositiveInt
from areal_actors.errors import RecipeError, RewardError, SetupError
from areal_actors.rewards.checks import task_name
from areal_actors.rewards.math_alignment import alike, comparable, evaluated, lists_elements
from areal_actors.rewards.math_statement import boxes, contents, hashes, is_prose, last_list, readable

ALARM_AGAIN = 0.05
"""CPU seconds until the alarm rings again that rang in a finalizer, where Python drops what is raised."""
SPARE_BYTES = 2 << 30
"""What a process may take beyond what it has while it reads and compares."""


class OutOfTimeError(BaseException):
    """Raised by the alarm; no `except Exception` of the library stops it."""


class MathEquivalence(Config):
    """`task.reward = "math"`; these are its `[task.reward_options]`."""

    field: str = "answer"
    """The task's field that holds the truth."""
    seconds: PositiveFloat = 4.0
    """CPU seconds for one answer to be read and compared."""
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
                return float(_states(truth, output[-self.characters :]))
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
    """Raise `OutOfTimeError` in this (the main) thread after that many CPU seconds, and MemoryError where it takes too much."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    def dropped(raised: sys.UnraisableHookArgs) -> None:
        if raised.exc_type is OutOfTimeError:
            signal.setitimer(signal.ITIMER_PROF, ALARM_AGAIN)
        else:
            hook(raised)

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = min(limit for limit in (soft, hard, _address_space() + SPARE_BYTES) if limit != resource.RLIM_INFINITY)
    handler, hook = signal.signal(signal.SIGPROF, ring), sys.unraisablehook
    try:
        sys.unraisablehook = dropped
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        sys.unraisablehook = hook


def _address_space() -> int:
    """Bytes; as if it were endless where there is no /proc to say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 60


@lru_cache(maxsize=1024)
def _truth(solution: str) -> tuple[Any, ...]:
    """What a solution states, as expressions; empty when it cannot be read. A group asks it again and again."""
    read, boxed = _stated_by(solution)
    if boxed is None:
        read = read or _read_alone(solution.strip())
    elif len(boxed) > 1:
        read = _read_list(boxed)
    return tuple(read)


def _states(truth: tuple[Any, ...], answer: str) -> bool:
    """Whether the answer states the truth: by its last statement, or by all its boxes together where the truth is a set."""
    read, _ = _stated_by(answer)
    found = boxes(answer)
    if not found:
        return _equal(truth, read or _read(answer))
    if _equal(truth, read):
        return True
    return len(found) > 1 and any(map(lists_elements, truth)) and _equal(truth, _read_list([box.content for box in found]))


def _stated_by(text: str) -> tuple[list[Any], list[str] | None]:
    """What stands on the last line of hashes or in the last box, whichever is later, and the boxes that end the text with it.

    None instead of the boxes, where hashes count or there is no box.
    """
    found, line = boxes(text), hashes(text)
    if line and not (found and found[-1].start > line[0]) and (read := _read_alone(line[1])):
        return read, None
    if not found:
        return [], None
    return _read_box(found[-1].content), [box.content for box in last_list(text, found)]


def _read_alone(text: str) -> list[Any]:
    """A text that is nothing but an expression, or says where it has one, or has a number among its words."""
    return _read(text) if is_prose(text) else _read_box(text)


def _read_box(content: str) -> list[Any]:
    return [expression for stated in contents(content) for expression in _read_latex(stated)]


def _read_list(boxed: list[str]) -> list[Any]:
    """The contents of several boxes, as the set of them."""
    return _read_latex(", ".join(stated for content in boxed for stated in contents(content)))


def _read_latex(latex: str) -> list[Any]:
    """An expression that is read as a whole or not at all: no number is picked out of one that cannot be read."""
    return _read(f"${latex}$", [library().LatexExtractionConfig()])


def _read(text: str, config: Sequence[Any] | None = None) -> list[Any]:
    """The expressions that the library finds in a text; what it cannot read is left out."""
    options = {} if config is None else {"extraction_config": config}
    read = library().parse(readable(text), parsing_timeout=None, **options)
    return [evaluated(expression) for expression in read if not isinstance(expression, str)]


def _equal(truth: tuple[Any, ...], answer: list[Any]) -> bool:
    pairs = (alike(true, stated) for true in truth for stated in answer if comparable(true, stated))
    return any(library().verify(*pair, timeout_seconds=None, allow_set_relation_comp=True) for pair in pairs)
