"""Contract of every reader of data files. A case takes a reader, a file that it reads, and the rows that are in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Rows = Sequence[Mapping[str, Any]]


class ReaderHarness(NamedTuple):
    read: Callable[[Path], Rows]
    file: Path
    rows: Rows
    """Rows of the file."""


Case = Callable[[ReaderHarness], None]


def the_rows_are_those_of_the_file(harness: ReaderHarness) -> None:
    assert list(harness.read(harness.file)) == list(harness.rows)


def rows_are_read_again_in_the_same_order(harness: ReaderHarness) -> None:
    assert list(harness.read(harness.file)) == list(harness.read(harness.file))


def a_row_can_be_written_into_a_log(harness: ReaderHarness) -> None:
    for row in harness.read(harness.file):
        assert all(isinstance(name, str) for name in row), row
        assert json.loads(json.dumps(row)) == row


def the_file_stays_as_it_is(harness: ReaderHarness) -> None:
    before = harness.file.read_bytes()
    harness.read(harness.file)
    assert harness.file.read_bytes() == before
    assert [path.name for path in harness.file.parent.iterdir()] == [harness.file.name]


def a_file_that_is_absent_is_an_error(harness: ReaderHarness) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        harness.read(harness.file.with_name(f"absent{harness.file.name}"))
    assert isinstance(raised.value, OSError | ValueError) or type(raised.value).__module__.startswith("areal_actors"), (
        raised.value
    )


CASES: tuple[Case, ...] = (
    the_rows_are_those_of_the_file,
    rows_are_read_again_in_the_same_order,
    a_row_can_be_written_into_a_log,
    the_file_stays_as_it_is,
    a_file_that_is_absent_is_an_error,
)
