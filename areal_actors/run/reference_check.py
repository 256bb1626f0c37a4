"""Before a run: reads the reference of every task with the rule that will score its answers.

A row whose reference the rule cannot read is played and abandoned whenever it is drawn, and no answer to it is ever
right.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from areal_actors.core.errors import RewardError, SetupError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.rewards.math_reading import Reference
from areal_actors.rewards.reference_readers import ReferenceReader, reference_readers
from areal_actors.tasks.datasets import ARITHMETIC, Dataset, Tasks

ROWS_NAMED = 10
"""Rows that a sentence names, of those that cannot be read."""
PARSE_SECONDS = 3.0
"""CPU seconds to find out which references are no expressions; those beyond are not examined for it."""


class ReferenceCount(msgspec.Struct, frozen=True):
    """References of a dataset by how a rule reads them."""

    rows: int
    unreadable: Mapping[int, str]
    """Reason by number of the row, counted from 0."""
    text_only: Sequence[int] = ()
    """Rows whose reference is compared as text only."""
    parsed: int = 0
    """References that were examined for `text_only`."""


def check_references(task: TaskSettings, dataset: Dataset) -> list[str]:
    """Returns a sentence for each rule about the references of all tasks, held-out ones included.

    Raises:
        SetupError: a rule cannot read some, and `task.unreadable_references` is `refuse`; the message counts them and
            names their rows.
    """
    if task.dataset == ARITHMETIC:
        return []  # generated, with references that are right by construction
    sentences = []
    for name, reader in reference_readers(task):
        for split, tasks, numbers in _splits(dataset):
            count = count_references(reader, tasks, numbers)
            sentence = describe_count(count, name, f"{split}references of {tasks.name}")
            if count.unreadable and task.unreadable_references == "refuse":
                remedy = 'correct or remove these rows, or set task.unreadable_references = "warn" to play them'
                raise SetupError(f"task.dataset: {sentence}; {remedy}")
            sentences.append(f"references  {sentence}")
    return sentences


def _splits(dataset: Dataset) -> list[tuple[str, Tasks, Sequence[int]]]:
    """Returns a word for each set of rows, its tasks, and the numbers of its rows."""
    train, held_out = dataset.train, dataset.held_out
    if train.source is held_out.source:
        return [("", train, sorted((*train.numbers, *held_out.numbers)))]
    parts = [("", train, train.numbers), ("held-out ", held_out, held_out.numbers)]
    return [part for part in parts if part[2]]


def count_references(reader: ReferenceReader, tasks: Tasks, numbers: Sequence[int]) -> ReferenceCount:
    """Reads the references of these rows."""
    unreadable: dict[int, str] = {}
    text_only: list[int] = []
    parsed, spent = 0, 0.0
    for number in numbers:
        try:
            reference = reader.read_reference(tasks.row_task(number).data)
        except RewardError as error:
            unreadable[number] = str(error)
            continue
        if isinstance(reference, Reference) and spent < PARSE_SECONDS:
            started = time.process_time()
            parsed += 1
            if reference.is_text_only:
                text_only.append(number)
            spent += time.process_time() - started
    return ReferenceCount(len(numbers), unreadable, text_only, parsed)


def describe_count(count: ReferenceCount, rule: str, references: str) -> str:
    """Returns the sentence about `references`, such as "references of gsm8k"."""
    if count.unreadable:
        first, reason = next(iter(count.unreadable.items()))
        return (
            f'{len(count.unreadable):,} of {count.rows:,} {references} cannot be read by task.reward = "{rule}", '
            f"so that no answer to them is right: {_list_rows(list(count.unreadable))} (row {first}: {reason})"
        )
    sentence = f"{rule} reads all {count.rows:,} {references}"
    if not count.text_only:
        return sentence
    examined = "" if count.parsed == count.rows else f" of the first {count.parsed:,}"
    return f"{sentence}; {len(count.text_only):,}{examined} are compared as text only: {_list_rows(count.text_only)}"


def _list_rows(rows: Sequence[int]) -> str:
    """Returns the numbers of rows, the first of them if there are many."""
    named = ", ".join(map(str, rows[:ROWS_NAMED]))
    more = f" and {len(rows) - ROWS_NAMED:,} more" if len(rows) > ROWS_NAMED else ""
    return f"row{'s' if len(rows) > 1 else ''} {named}{more}, counted from 0"
