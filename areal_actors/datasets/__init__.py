"""Where tasks come from: a dataset to train on and tasks held out for evaluation, in an order that needs no memory.

The n-th task drawn is a function of the seed and n alone, so a run that is continued goes on where it was. Rows stay where
they are and are read when they are drawn; that each is a question with an answer is seen before anything starts.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from areal_actors.datasets import arithmetic
from areal_actors.datasets.order import Order
from areal_actors.datasets.rows import ListedRows, Rows
from areal_actors.datasets.sources import Source, open_source
from areal_actors.errors import RecipeError
from areal_actors.values import Task

ARITHMETIC = "arithmetic"
ARITHMETIC_ROWS = 10_000
HELD_OUT_SEED = 0
"""The held-out problems that are made here are the same in every run, so that runs can be compared."""
FIELDS = ("question", "answer")
"""What the data of every task has; further fields are kept for the agent."""


class Tasks(msgspec.Struct, frozen=True, dict=True):
    """Tasks in a fixed order: as they stand, or shuffled anew in each epoch."""

    source: Rows
    name: str
    """A task's id is this and the number of its row, and stands in its data too, for error messages of reward functions."""
    numbers: Sequence[int]
    """Of the rows that are among the tasks."""
    columns: Mapping[str, str] = {}
    """What the source calls a field, where that is another name than ours."""
    shuffle_seed: int | None = None
    """None keeps the order of the rows."""

    def __len__(self) -> int:
        return len(self.numbers)

    def task(self, n: int) -> Task:
        """The n-th draw, counted from 0; each epoch draws every task once.

        Raises:
            SetupError: its row cannot be read any more.
        """
        return self._task(self.numbers[self._order.row(n)])

    @property
    def rows(self) -> tuple[Task, ...]:
        """Every task in the order of the rows; reads them all."""
        return tuple(map(self._task, self.numbers))

    @cached_property
    def _order(self) -> Order:
        return Order(length=len(self.numbers), seed=self.shuffle_seed)

    def _task(self, number: int) -> Task:
        row, theirs = self.source.row(number), set(self.columns.values())
        renamed = {field: row[name] for field, name in self.columns.items() if name in row}
        identifier = f"{self.name}-{number}"
        return Task(id=identifier, data={**{name: row[name] for name in row if name not in theirs}, **renamed, "id": identifier})


class Dataset(msgspec.Struct, frozen=True):
    """What is trained on, and what is not."""

    train: Tasks
    held_out: Tasks


def open_dataset(spec: str, *, seed: int, held_out: int | str = 200, columns: Mapping[str, str] | None = None) -> Dataset:
    """Open `arithmetic`, a dataset of the Hugging Face hub, or what lies in files; see docs/data.md.

    Args:
        spec: which dataset.
        seed: decides the order of training, and which rows are held out.
        held_out: a second dataset in files, or how many tasks of the dataset's own: of its test split where it has one, else
            rows that are then not trained on. 0 holds out none. What has the question of a held-out task is not trained on.
        columns: by our name of a field, what the dataset calls it.

    Raises:
        RecipeError: there is no such dataset, or it has too few rows to hold out so many.
        SetupError: it cannot be had, or a row is not a question with an answer; the message says where and what to do.
    """
    columns = columns or {}
    source = _made_here(seed, held_out) if spec == ARITHMETIC else _opened(spec, "dataset")
    named_apart = source.test is not None or isinstance(held_out, str)
    name = f"{source.name}-train" if source.test is not None else source.name
    fields = [columns.get(field, field) for field in FIELDS]
    digests = array("q", (hash(texts[0]) for texts in source.train.texts(fields)))
    if not named_apart and held_out:
        chosen = _chosen(len(digests), int(held_out), seed, spec)
        kept = Tasks(source.train, name, array("I", chosen), columns)
    else:
        kept = _apart(source, held_out, spec, columns)
    numbers = _without(digests, kept, fields, spec, held_out)
    return Dataset(train=Tasks(source.train, name, numbers, columns, shuffle_seed=seed), held_out=kept)


def _made_here(seed: int, held_out: int | str) -> Source:
    count = held_out if isinstance(held_out, int) else 0
    train = ListedRows(arithmetic.rows("train", ARITHMETIC_ROWS, seed), ARITHMETIC)
    return Source(name=ARITHMETIC, train=train, test=ListedRows(arithmetic.rows("test", count, HELD_OUT_SEED), ARITHMETIC))


def _opened(spec: str, setting: str) -> Source:
    try:
        return open_source(spec)
    except RecipeError as error:
        raise RecipeError(f"`task.{setting}`: {error}") from error


def _chosen(rows: int, count: int, seed: int, spec: str) -> list[int]:
    """Which rows of a dataset without a test split are held out, in their order."""
    if count >= rows:
        raise RecipeError(f"`task.held_out`: found {count}, but {spec} has {rows} rows; hold out fewer, or name a second file")
    return sorted(random.Random(f"held out {seed}").sample(range(rows), count))


def _apart(source: Source, held_out: int | str, spec: str, columns: Mapping[str, str]) -> Tasks:
    """Held-out tasks that have rows of their own: those of a second dataset, or the first of the test split."""
    if isinstance(held_out, str):
        other = _opened(held_out, "held_out")
        rows, name, count = other.train, f"held-out-{other.name}", len(other.train)
    else:
        rows, name, count = source.test or ListedRows((), source.name), f"{source.name}-test", held_out
    if count > len(rows):
        raise RecipeError(f"`task.held_out`: found {count}, but {spec} has {len(rows)} tasks for evaluation; write at most so many")
    return Tasks(rows, name, range(count), columns)


def _without(digests: Sequence[int], kept: Tasks, fields: Sequence[str], spec: str, held_out: int | str) -> Sequence[int]:
    """The rows whose question is not among those held out; `digests` are those of the questions, row by row."""
    if not len(kept):
        return range(len(digests))
    chosen = set(kept.numbers)
    asked = {hash(texts[0]) for number, texts in enumerate(kept.source.texts(fields)) if number in chosen}
    numbers = array("I", (number for number, digest in enumerate(digests) if digest not in asked))
    if not numbers:
        raise RecipeError(f"`task.held_out`: every question of {spec} is also in {held_out}; name a file of other tasks")
    return numbers
