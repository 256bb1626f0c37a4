"""Python reward: runs the answer's program against the task's tests.

The program is the last fenced block of the answer marked as Python, else the last block without a language, else the
whole answer. A task's `tests` are a list, each of them one of

    {"input": "3 4", "output": "7"}       stdin and expected stdout; trailing whitespace is ignored
    "assert add(3, 4) == 7"               statements executed after the program, in another process

or one text of statements. Every test runs in its own process in the sandbox (`areal_actors/sandbox/`). A program that
fails, hangs or exceeds its limits is wrong; a task without tests, or a sandbox that cannot be created, is an error. A
program has neither the expected output nor the statements, and the proof that they passed is never in its process;
docs/security.md lists what stays possible.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from areal_actors.core.config import Config, PositiveFloat, PositiveInt
from areal_actors.core.errors import RewardError, SandboxError, SetupError
from areal_actors.rewards.checks import task_name
from areal_actors.sandbox import Limits, run_program
from areal_actors.sandbox.protection import PAGE, describe_protection

_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
PYTHON = ("python", "python3", "py")
SHORTEST = 0.05
"""Minimum remaining seconds to start a test."""
PREPARATION_SECONDS = 10.0


class InputOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A test of stdin and expected stdout."""

    input: str
    output: str


class PythonTests(Config):
    """`task.reward = "python_tests"`; these are its `[task.reward_options]`."""

    tests: str = "tests"
    """Field of the task with its tests."""
    partial: bool = False
    """Reward the share of passed tests, instead of 1 for all and 0 otherwise."""
    test_seconds: PositiveFloat = 2.0
    """Time limit of one test."""
    seconds: PositiveFloat = 8.0
    """Time limit of all tests together; tests not reached count as failed."""
    memory_mb: PositiveInt = 512

    def prepare(self) -> None:
        """Try the sandbox.

        Raises:
            SetupError: it cannot be created on this machine.
        """
        try:
            run_program("", limits=Limits(seconds=PREPARATION_SECONDS))
        except SandboxError as error:
            raise SetupError(f"task.reward: `python_tests` cannot run programs here: {error}") from error

    def describe(self) -> Sequence[str]:
        """Restrictions of the programs, and which tests they pass without an answer."""
        return (
            describe_protection(),
            (
                "tests pass without an answer where they hold it (`f(x).equals(expected)`) or ask for truth only"
                f" (`assert f(x)`) ({PAGE})"
            ),
        )

    def __call__(self, task: Mapping[str, Any], output: str) -> float:
        """Returns a number from 0 to 1.

        Raises:
            RewardError: the task has no valid tests, or the sandbox cannot be created.
        """
        tests = self._tests(task)
        program = program_of(output)
        ends = time.monotonic() + self.seconds
        passed = 0
        for test in tests:
            left = min(self.test_seconds, ends - time.monotonic())
            if left < SHORTEST or not passes(program, test, Limits(seconds=left, memory_mb=self.memory_mb)):
                if not self.partial:
                    return 0.0
            else:
                passed += 1
        return passed / len(tests)

    def _tests(self, task: Mapping[str, Any]) -> Sequence[InputOutput | str]:
        source = task.get(self.tests)
        wanted = 'a list of {"input", "output"} objects and texts of statements, or one such text'
        try:
            tests = [source] if isinstance(source, str) else msgspec.convert(source, list[InputOutput | str])
        except msgspec.ValidationError as error:
            raise RewardError(f"task {task_name(task)}: `{self.tests}` must be {wanted}: {error}") from error
        if not tests or any(isinstance(test, str) and not test.strip() for test in tests):
            raise RewardError(f"task {task_name(task)}: `{self.tests}` must be {wanted}, got {source!r:.60}")
        return tests


def program_of(output: str) -> str:
    """Returns the program of an answer."""
    blocks = [(match[2].lower(), match[3]) for match in _FENCE.finditer(output)]
    for languages in (PYTHON, ("",)):
        if marked := [block for language, block in blocks if language in languages]:
            return marked[-1]
    return output


def passes(program: str, test: InputOutput | str, limits: Limits) -> bool:
    """True if a program passes one test.

    Raises:
        RewardError: the sandbox cannot be created.
    """
    try:
        if isinstance(test, str):
            return run_program(program, checks=[test], limits=limits).proved
        ran = run_program(program, stdin=test.input, limits=limits)
    except SandboxError as error:
        raise RewardError(str(error)) from error
    return not ran.timed_out and ran.status == 0 and _lines(ran.output.decode(errors="replace")) == _lines(test.output)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
