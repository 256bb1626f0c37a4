r"""Math reward: checks that the answer's final expression is mathematically equal to the task's, with `math-verify`.

The task's `answer` is the expression itself (`\frac{1}{2}`, `x^2 + 1`, `(1, 2]`), or a solution that marks it: after four hashes as
in GSM8K or in `\boxed{}`, whichever is later, else in `$…$`. Of several boxes only the last counts; if the truth is a set, all of
them together may state it. A truth that cannot be parsed, or takes too long, is an error, not a wrong answer. An answer of the
model that cannot be parsed, or not compared in time, is wrong.

A signal, which works only in a main thread, bounds parsing and comparison together; reward processes (`rewards/reward_pool.py`)
score in their main thread. The limit is in CPU seconds, so that a busy machine does not fail right answers. A comparison that
ignores the signal is killed with its process, which is a failure.
"""

from __future__ import annotations

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

from areal_actors.core.config import Config, PositiveFloat, PositiveInt
from areal_actors.core.errors import RewardError, SetupError
from areal_actors.rewards.checks import optional_package, task_name
from areal_actors.rewards.math_alignment import align_forms, comparable, lists_elements, substitute_imaginary_unit
from areal_actors.rewards.math_statement import boxes, contents, hashes, is_prose, last_list, normalize_latex

ALARM_AGAIN = 0.05
"""CPU seconds until the alarm is repeated if it fired in a finalizer, where Python drops exceptions."""
SPARE_BYTES = 2 << 30
"""Additional memory that a process may allocate while it parses and compares."""


class OutOfTimeError(BaseException):
    """Raised by the alarm; not caught by `except Exception` in the library."""


class MathEquivalence(Config):
    """`task.reward = "math"`; these are its `[task.reward_options]`."""

    field: str = "answer"
    """Field of the task with the truth."""
    seconds: PositiveFloat = 4.0
    """CPU seconds to parse and compare one answer."""
    characters: PositiveInt = 20_000
    """Number of characters parsed, from the end of the answer."""

    def prepare(self) -> None:
        """Load the library and compare once, before the reward is timed.

        Raises:
            RecipeError: it is not installed.
            SetupError: it does not work, for example without its grammar.
        """
        library()
        if not _equal(_truth(r"\frac{1}{2}"), _read("$0.5$")):
            raise SetupError("task.reward: math-verify does not find that 1/2 is 0.5; reinstall it: pip install 'areal-actors[rewards]'")

    def __call__(self, task: Mapping[str, Any], output: str) -> float:
        """Returns 1.0 if they are equal, else 0.0.

        Raises:
            RewardError: the task's answer cannot be parsed as mathematics.
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
        except (OutOfTimeError, Exception):  # noqa: BLE001 - an exception is caused by the text of the model
            return 0.0


@cache
def library() -> Any:
    """Returns the `math_verify` package; raises like `optional_package`, also without its grammar."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no timeout; `bounds` sets one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optional_package("math_verify", "math", "math-verify")


@contextmanager
def bounds(seconds: float) -> Iterator[None]:
    """Raises `OutOfTimeError` in the main thread after this many CPU seconds, and MemoryError beyond `SPARE_BYTES`."""

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
    """Returns the address space in bytes; a huge number if there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 60


@lru_cache(maxsize=1024)
def _truth(solution: str) -> tuple[Any, ...]:
    """Returns the expressions of a solution; empty if it cannot be parsed. Cached, because a group shares its solution."""
    read, boxed = _stated_by(solution)
    if boxed is None:
        read = read or _read_alone(solution.strip())
    elif len(boxed) > 1:
        read = _read_list(boxed)
    return tuple(read)


def _states(truth: tuple[Any, ...], answer: str) -> bool:
    """True if the answer states the truth: by its last statement, or by all its boxes together if the truth is a set."""
    read, _ = _stated_by(answer)
    found = boxes(answer)
    if not found:
        return _equal(truth, read or _read(answer))
    if _equal(truth, read):
        return True
    return len(found) > 1 and any(map(lists_elements, truth)) and _equal(truth, _read_list([box.content for box in found]))


def _stated_by(text: str) -> tuple[list[Any], list[str] | None]:
    """Returns the expressions of the last `####` line or the last box, whichever is later, and the list of boxes that it ends.

    The list is None if the `####` line counts or there is no box.
    """
    found, line = boxes(text), hashes(text)
    if line and not (found and found[-1].start > line[0]) and (read := _read_alone(line[1])):
        return read, None
    if not found:
        return [], None
    return _read_box(found[-1].content), [box.content for box in last_list(text, found)]


def _read_alone(text: str) -> list[Any]:
    """Parses a text that is an expression, marks one, or has a number among its words."""
    return _read(text) if is_prose(text) else _read_box(text)


def _read_box(content: str) -> list[Any]:
    return [expression for stated in contents(content) for expression in _read_latex(stated)]


def _read_list(boxed: list[str]) -> list[Any]:
    """Parses the contents of several boxes as one set."""
    return _read_latex(", ".join(stated for content in boxed for stated in contents(content)))


def _read_latex(latex: str) -> list[Any]:
    """Parses an expression as a whole or not at all: never only a number in it."""
    return _read(f"${latex}$", [library().LatexExtractionConfig()])


def _read(text: str, config: Sequence[Any] | None = None) -> list[Any]:
    """Returns the expressions that the library finds in a text, without those that it cannot parse."""
    options = {} if config is None else {"extraction_config": config}
    read = library().parse(normalize_latex(text), parsing_timeout=None, **options)
    return [substitute_imaginary_unit(expression) for expression in read if not isinstance(expression, str)]


def _equal(truth: tuple[Any, ...], answer: list[Any]) -> bool:
    pairs = (align_forms(true, stated) for true in truth for stated in answer if comparable(true, stated))
    return any(library().verify(*pair, timeout_seconds=None, allow_set_relation_comp=True) for pair in pairs)
