"""Generated repositories of two files: a program with one fault, and its test.

A row is `{"question", "answer", "file", "files", "tests"}`: what the agent is asked, the program without the fault, the
file to repair, all files by name, and statements that the repaired program must pass. The combination of names and
numbers determines the split, so no held-out repository is seen in training. The same seed gives the same rows on every
machine.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from areal_actors.tasks.arithmetic import ITEMS, Split

__all__ = ["Repository", "repositories", "rows"]

SMALLEST, LARGEST = 2, 30
"""Numbers that a program may return."""
HELD_OUT_SHARE = 5
"""One in this many repositories is held out."""
ISSUES = 1_000_003
"""Upper bound of issue numbers; a prime, so that they do not reveal the split."""


class Repository(msgspec.Struct, frozen=True):
    """A module with one function, which has another name or returns another number than its test expects."""

    name: str
    """Name of the module, and of the function that the test calls."""
    found: str
    """Name of the function in the program."""
    returned: int
    """Number that the program returns."""
    expected: int
    """Number that the test expects."""

    @property
    def file(self) -> str:
        """Name of the file with the fault."""
        return f"{self.name}.py"

    @property
    def test_file(self) -> str:
        """Name of the test."""
        return f"test_{self.name}.py"

    @property
    def program(self) -> str:
        """The program with its fault."""
        return _program(self.found, self.returned)

    @property
    def repaired(self) -> str:
        """The program without the fault."""
        return _program(self.name, self.expected)

    @property
    def test(self) -> str:
        """The test as a program, which prints `passed`, or ends with status 1."""
        return f'from {self.name} import {self.name}\n\n{self.assertion}\nprint("passed")\n'

    @property
    def assertion(self) -> str:
        """The statement that the repaired program passes."""
        return f"assert {self.name}() == {self.expected}"

    @property
    def files(self) -> dict[str, str]:
        """Content by file name."""
        return {self.file: self.program, self.test_file: self.test}

    @property
    def question(self) -> str:
        """The request to the agent; its number distinguishes repositories that differ only in their content."""
        return f"Issue {self._digest % ISSUES}: {self.test_file} fails. Fix {self.file}."

    @property
    def row(self) -> dict[str, Any]:
        """The repository as a task."""
        return {
            "question": self.question,
            "answer": self.repaired,
            "file": self.file,
            "files": self.files,
            "tests": [self.assertion],
        }

    @property
    def is_held_out(self) -> bool:
        """True if it belongs to the split `test`."""
        return self._digest % HELD_OUT_SHARE == 0

    @property
    def _digest(self) -> int:
        return zlib.crc32(f"{self.name} {self.found} {self.returned} {self.expected}".encode())


def _program(name: str, number: int) -> str:
    return f"def {name}():\n    return {number}\n"


def repository(split: Split, rng: random.Random) -> Repository:
    """Returns a random repository of a split: half of them have a wrong number, the others a wrong name."""
    while True:
        name, other = rng.sample(ITEMS, 2)
        expected, wrong = rng.sample(range(SMALLEST, LARGEST + 1), 2)
        has_wrong_number = rng.random() < 0.5
        task = (
            Repository(name, name, wrong, expected) if has_wrong_number else Repository(name, other, expected, expected)
        )
        if task.is_held_out == (split == "test"):
            return task


def repositories(split: Split, seed: int) -> Iterator[Repository]:
    """Yields random repositories of a split, without end."""
    rng = random.Random(f"repositories {split} {seed}")
    while True:
        yield repository(split, rng)


def rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """Returns `count` rows of a split."""
    return [task.row for task in islice(repositories(split, seed), count)]
