r"""Math reward: checks that the answer's final expression is mathematically equal to the task's, with `math-verify`.

The task's `answer` is the result itself (`\frac{1}{2}`, `x^2 + 1`, `(1, 2]`, `July 4`), or a solution that marks it:
after four hashes as in GSM8K or in `\boxed{}`, whichever is later, else in `$…$`. An answer may mark it by `<answer>`
or `Answer:`, too. Of several boxes only the last counts; if the truth is a set, all of them together may state it. A
truth that cannot be read, or takes too long, is an error, not a wrong answer. An answer of the model that cannot be
read, or not compared in time, is wrong. Where a result is looked for and how two are compared:
`rewards/math_reading.py`.

A signal, which works only in a main thread, bounds parsing and comparison together; reward processes
(`rewards/reward_pool.py`) score in their main thread. The limit is in CPU seconds, so that a busy machine does not fail
right answers. A comparison that ignores the signal is killed with its process, which is a failure.
"""

from __future__ import annotations

import math
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from areal_actors.core.config import Config, PositiveFloat, PositiveInt
from areal_actors.core.errors import RewardError, SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.rewards.checks import task_name

if TYPE_CHECKING:
    from areal_actors.rewards import math_reading
else:
    math_reading = LazyModule("areal_actors.rewards.math_reading")  # its patterns are compiled when a rule is used

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
        math_reading.library()
        if not math_reading.states(math_reading.read_reference(r"\frac{1}{2}"), "$0.5$"):
            raise SetupError(
                "task.reward: math-verify does not find that 1/2 is 0.5; reinstall it: pip install"
                " 'areal-actors[rewards]'"
            )

    def __call__(self, task: Mapping[str, Any], output: str) -> float:
        """Returns 1.0 if they are equal, else 0.0.

        Raises:
            RewardError: the task's answer cannot be read.
        """
        reference = self.read_reference(task)
        try:
            with bounds(self.seconds):
                return float(math_reading.states(reference, output[-self.characters :]))
        except RewardError:
            raise
        except (OutOfTimeError, Exception):  # noqa: BLE001 - an exception is caused by the text of the model
            return 0.0

    def read_reference(self, task: Mapping[str, Any]) -> math_reading.Reference:
        """Returns the result of a task.

        Raises:
            RewardError: no answer could be equal to it; the message names the task and its text.
        """
        reference = None
        solution = reference_text(task.get(self.field))
        try:
            with bounds(self.seconds):
                reference = math_reading.read_reference(solution) if solution is not None else None
                readable = reference is not None and reference.is_readable
        except RewardError:
            raise
        except (OutOfTimeError, Exception):  # noqa: BLE001 - a text that breaks the parser cannot be read
            readable = False
        if readable and reference is not None:
            return reference
        shown = repr(solution[-60:]) if solution is not None else type(task.get(self.field)).__name__
        raise RewardError(
            f"task {task_name(task)}: `{self.field}` must be an expression, or end with `#### …` or `\\boxed{{…}}`, got"
            f" {shown}"
        )


def reference_text(value: object) -> str | None:
    """Returns a reference as text: a text, a number, or a list of one of them; None for anything else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    return value if isinstance(value, str) else None


@contextmanager
def bounds(seconds: float) -> Iterator[None]:
    """Raises `OutOfTimeError` in the main thread after this many CPU seconds, and MemoryError beyond `SPARE_BYTES`.

    Raises:
        RewardError: this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RewardError("`math` scores only in the main thread of a process, where its time can be limited")

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    def rearm_alarm(raised: sys.UnraisableHookArgs) -> None:
        if raised.exc_type is OutOfTimeError:
            signal.setitimer(signal.ITIMER_PROF, ALARM_AGAIN)
        else:
            hook(raised)

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = min(limit for limit in (soft, hard, _address_space() + SPARE_BYTES) if limit != resource.RLIM_INFINITY)
    handler, hook = signal.signal(signal.SIGPROF, ring), sys.unraisablehook
    try:
        sys.unraisablehook = rearm_alarm
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
