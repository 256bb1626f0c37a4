"""Task datasets: tasks to train on and held-out tasks for evaluation, in a stateless order.

The n-th task drawn is a function of the seed and n alone, so a resumed run continues where it was. Rows are read when
they are drawn; all are checked for a question, and an answer where the reward needs one, before the run starts.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from areal_actors.core.environments import environment_title
from areal_actors.core.errors import RecipeError
from areal_actors.core.values import Task
from areal_actors.tasks import arithmetic
from areal_actors.tasks.environment_tasks import HELD_OUT, TASKS
from areal_actors.tasks.jsonl import JsonLines
from areal_actors.tasks.order import Order
from areal_actors.tasks.rows import DatasetRows, ListedRows
from areal_actors.tasks.shapes import Shape, ShapedRows, find_shape
from areal_actors.tasks.sources import Source, open_source
from areal_actors.tasks.values import as_text

__all__ = ["Dataset", "Tasks", "open_dataset"]

ARITHMETIC = "arithmetic"
ARITHMETIC_ROWS = 10_000
HELD_OUT_SEED = 0
"""Seed of generated held-out problems: the same in every run, so that runs can be compared."""
FIELDS = ("question", "answer")
"""Checked fields of a task's data; further fields are passed to the agent."""


LISTED_KEY = "key"
"""Field of an environment's task with a digest of its content."""


class Tasks(msgspec.Struct, frozen=True, dict=True):
    """Tasks in a fixed order: that of the rows, or shuffled in each epoch."""

    source: DatasetRows
    name: str
    """Prefix of task ids, followed by the row number; the id is also in the data, for errors of reward functions."""
    numbers: Sequence[int]
    """Numbers of the rows that are tasks."""
    columns: Mapping[str, str] = {}
    """Column of the source by field name, where the two differ."""
    shuffle_seed: int | None = None
    """None keeps the order of the rows."""

    def __len__(self) -> int:
        return len(self.numbers)

    def task(self, n: int) -> Task:
        """Returns the n-th draw, counted from 0; each epoch draws every task once.

        Raises:
            SetupError: its row can no longer be read.
        """
        return self.row_task(self.numbers[self._order.row(n)])

    @property
    def rows(self) -> tuple[Task, ...]:
        """All tasks in row order; reads every row."""
        return tuple(map(self.row_task, self.numbers))

    @cached_property
    def _order(self) -> Order:
        return Order(length=len(self.numbers), seed=self.shuffle_seed)

    def row_task(self, number: int) -> Task:
        """Returns the task of a row of the source, by its number there.

        Raises:
            SetupError: the row can no longer be read.
        """
        row, columns = self.source.row(number), set(self.columns.values())
        renamed = {field: row[name] for field, name in self.columns.items() if name in row}
        renamed |= {
            field: text for field in FIELDS if (text := as_text(renamed.get(field, row.get(field)))) is not None
        }
        identifier = f"{self.name}-{number}"
        return Task(
            id=identifier,
            data={**{name: row[name] for name in row if name not in columns}, **renamed, "id": identifier},
        )


class Dataset(msgspec.Struct, frozen=True):
    """Tasks to train on, and held-out tasks."""

    train: Tasks
    held_out: Tasks
    recognised: str = ""
    """Columns that the recipe does not name, and were recognised; empty if they are `question` and `answer`."""


def open_dataset(
    spec: str, *, seed: int, held_out: int | str = 200, columns: Mapping[str, str] | None = None, answers: bool = True
) -> Dataset:
    """Open `arithmetic`, a dataset of the Hugging Face hub, or files; see docs/data.md.

    Args:
        spec: name of the dataset.
        seed: determines the order of training and the held-out rows.
        held_out: a second dataset in files, or a number of tasks of this dataset: from its test split if it has one,
            else rows excluded from training. 0 holds out none. Rows with the question of a held-out task are not
            trained on; where that is every row, those with its question and its answer.
        columns: column of the dataset by field name.
        answers: every row must have an answer; else they may lack it, all of them.

    Raises:
        RecipeError: there is no such dataset, or it has too few rows to hold out.
        SetupError: it cannot be read, or a row is not a question with an answer; the message has the place and the
            remedy.
    """
    source = _generate_rows(seed, held_out) if spec == ARITHMETIC else _open(spec, "dataset")
    shape = find_shape(source.train, spec, columns or {}, answers=answers)
    fields = [field for field in FIELDS if field in shape.columns or (field == "answer" and shape.answer_in_chat)]
    if shape.is_plain():
        named = {field: path for field, path in shape.columns.items() if field != path}
        dataset = _split(
            source, spec, [shape.columns[field] for field in fields], seed=seed, held_out=held_out, columns=named
        )
    else:
        test = source.test and ShapedRows(source.test, shape, f"{spec}, test")
        shaped = Source(name=source.name, train=ShapedRows(source.train, shape, spec), test=test)
        dataset = _split(shaped, spec, fields, seed=seed, held_out=held_out, columns={}, shape=shape)
    return msgspec.structs.replace(dataset, recognised=shape.describe())


def open_listed(folder: Path, environment: str, *, seed: int, held_out: int) -> Dataset:
    """Open the tasks that were listed from an environment; the content of a task takes the place of a question.

    Raises:
        RecipeError: there are too few to hold out.
        SetupError: the files cannot be read.
    """
    held_out_file = folder / HELD_OUT
    source = Source(
        name=environment_title(environment),
        train=JsonLines(folder / TASKS),
        test=JsonLines(held_out_file) if held_out_file.exists() else None,
    )
    return _split(source, environment, [LISTED_KEY], seed=seed, held_out=held_out, columns={})


def _split(
    source: Source,
    spec: str,
    fields: Sequence[str],
    *,
    seed: int,
    held_out: int | str,
    columns: Mapping[str, str],
    shape: Shape | None = None,
) -> Dataset:
    """Returns the tasks of a source, without those that are held out, and these.

    All rows must have `fields`, the first is compared.
    """
    separate = source.test is not None or isinstance(held_out, str)
    name = f"{source.name}-train" if source.test is not None else source.name
    digests = array("q", (_digest(texts, 1) for texts in source.train.texts(fields)))
    if not separate and held_out:
        chosen = choose_held_out(len(digests), int(held_out), seed, spec)
        kept = Tasks(source.train, name, array("I", chosen), columns)
    else:
        kept = _separate_held_out(source, held_out, spec, columns, shape)
    numbers = _not_held_out(source, digests, kept, fields, spec, held_out)
    return Dataset(train=Tasks(source.train, name, numbers, columns, shuffle_seed=seed), held_out=kept)


@lru_cache(1)
def _generate_rows(seed: int, held_out: int | str) -> Source:
    count = held_out if isinstance(held_out, int) else 0
    train = ListedRows(arithmetic.rows("train", ARITHMETIC_ROWS, seed), ARITHMETIC)
    return Source(
        name=ARITHMETIC, train=train, test=ListedRows(arithmetic.rows("test", count, HELD_OUT_SEED), ARITHMETIC)
    )


def _open(spec: str, setting: str) -> Source:
    try:
        return open_source(spec)
    except RecipeError as error:
        raise RecipeError(f"`task.{setting}`: {error}") from error


def choose_held_out(rows: int, count: int, seed: int, spec: str) -> list[int]:
    """Returns the numbers of the held-out rows of a dataset without a test split, in row order.

    Raises:
        RecipeError: it has too few rows.
    """
    if count >= rows:
        raise RecipeError(
            f"`task.held_out`: found {count}, but {spec} has {rows} rows; hold out fewer, or name a second file"
        )
    return sorted(random.Random(f"held out {seed}").sample(range(rows), count))


def _separate_held_out(
    source: Source, held_out: int | str, spec: str, columns: Mapping[str, str], shape: Shape | None
) -> Tasks:
    """Returns held-out tasks with separate rows: those of a second dataset, or the first of the test split."""
    if isinstance(held_out, str):
        held_out_source = _open(held_out, "held_out")
        rows = ShapedRows(held_out_source.train, shape, held_out) if shape is not None else held_out_source.train
        name, count = f"held-out-{held_out_source.name}", len(rows)
    else:
        rows, name, count = source.test or ListedRows((), source.name), f"{source.name}-test", held_out
    if count > len(rows):
        raise RecipeError(
            f"`task.held_out`: found {count}, but {spec} has {len(rows)} tasks for evaluation; write at most"
            f" {len(rows)}"
        )
    return Tasks(rows, name, range(count), columns)


def _not_held_out(
    source: Source, digests: Sequence[int], kept: Tasks, fields: Sequence[str], spec: str, held_out: int | str
) -> Sequence[int]:
    """Returns the rows whose question is not held out; `digests` has the hash of the question of each row.

    Where every question is held out, as in a game that begins with the same words each time, a row is excluded if its
    answer is that of a held-out row, too.
    """
    if not len(kept):
        return range(len(digests))
    chosen = set(kept.numbers)

    def excluding(compared: int, rows: Iterable[int]) -> Sequence[int]:
        texts = enumerate(kept.source.texts(fields))
        asked = {_digest(content, compared) for number, content in texts if number in chosen}
        return array("I", (number for number, digest in enumerate(rows) if digest not in asked))

    numbers = excluding(1, digests)
    if not numbers:
        numbers = excluding(len(fields), (_digest(texts, len(fields)) for texts in source.train.texts(fields)))
    if not numbers:
        where = f"the {held_out} held-out tasks" if isinstance(held_out, int) else held_out
        raise RecipeError(
            f"`task.held_out`: every question of {spec} is also in {where}; hold out fewer, or name a file of other"
            " tasks"
        )
    return numbers


def _digest(texts: Sequence[str], compared: int) -> int:
    return hash(tuple(texts[:compared]))
