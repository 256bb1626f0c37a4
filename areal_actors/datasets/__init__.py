"""Where tasks come from: a dataset to train on and tasks held out for evaluation, in an order that needs no memory.

The n-th task drawn is a function of the seed and n alone, so a run that is continued goes on where it was.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.datasets import arithmetic, gsm8k, jsonl
from areal_actors.errors import RecipeError
from areal_actors.values import Task

ARITHMETIC_ROWS = 10_000
HELD_OUT_SEED = 0
"""The held-out problems that are made here are the same in every run, so that runs can be compared."""


class Tasks(msgspec.Struct, frozen=True):
    """Tasks in a fixed order: as they stand, or shuffled anew in each epoch."""

    rows: tuple[Task, ...]
    shuffle_seed: int | None = None
    """None keeps the order of the rows."""

    def __len__(self) -> int:
        return len(self.rows)

    def task(self, n: int) -> Task:
        """The n-th draw, counted from 0; each epoch draws every task once."""
        epoch, position = divmod(n, len(self.rows))
        if self.shuffle_seed is None:
            return self.rows[position]
        return self.rows[_order(self.shuffle_seed, epoch, len(self.rows))[position]]


class Dataset(msgspec.Struct, frozen=True):
    """What is trained on, and what is not."""

    train: Tasks
    held_out: Tasks


def open_dataset(spec: str, *, seed: int, held_out: int | str = 200) -> Dataset:
    """Open `arithmetic`, `openai/gsm8k` or the path of a `.jsonl` file.

    Args:
        spec: which dataset.
        seed: decides the order of training, and which rows of a file are held out.
        held_out: the path of a `.jsonl` file, or how many tasks of the dataset's own: of its test split where it has one,
            else rows that are then not trained on. 0 holds out none.

    Raises:
        RecipeError: there is no such dataset, or it has too few rows to hold out so many.
        SetupError: it cannot be had, or a row is not a question with an answer; the message says where and what to do.
    """
    name = Path(spec).stem
    if spec == "arithmetic":
        train = _tasks(arithmetic.rows("train", ARITHMETIC_ROWS, seed), "arithmetic-train")
        kept = _tasks(arithmetic.rows("test", held_out, HELD_OUT_SEED), "arithmetic-test") if isinstance(held_out, int) else ()
    elif spec == gsm8k.NAME:
        train = _tasks(gsm8k.rows("train"), "gsm8k-train")
        kept = _first(_tasks(gsm8k.rows("test"), "gsm8k-test"), held_out, spec) if isinstance(held_out, int) else ()
    elif spec.endswith(".jsonl"):
        train = _tasks(jsonl.rows(Path(spec)), name)
        train, kept = _split(train, held_out, seed, spec) if isinstance(held_out, int) else (train, ())
    else:
        raise RecipeError(f"`task.dataset`: there is no dataset `{spec}`; write `arithmetic`, `{gsm8k.NAME}` or the path of a .jsonl file")
    if isinstance(held_out, str):
        kept = _tasks(jsonl.rows(Path(held_out)), f"held-out-{Path(held_out).stem}")
        train = _without(train, kept, spec, held_out)
    return Dataset(train=Tasks(train, shuffle_seed=seed), held_out=Tasks(kept))


def _tasks(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[Task, ...]:
    """Rows as tasks; the id is stable and stands in the data too, for error messages of reward functions."""
    return tuple(Task(id=f"{name}-{number}", data={**row, "id": f"{name}-{number}"}) for number, row in enumerate(rows))


def _first(tasks: tuple[Task, ...], count: int, spec: str) -> tuple[Task, ...]:
    if count > len(tasks):
        raise RecipeError(f"`task.held_out`: found {count}, but {spec} has {len(tasks)} tasks for evaluation; write at most so many")
    return tasks[:count]


def _split(tasks: tuple[Task, ...], count: int, seed: int, spec: str) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """All but `count` rows, and those; both in the order of the file."""
    if count >= len(tasks):
        raise RecipeError(f"`task.held_out`: found {count}, but {spec} has {len(tasks)} rows; hold out fewer, or name a second file")
    chosen = set(random.Random(f"held out {seed}").sample(range(len(tasks)), count))
    kept = [task for number, task in enumerate(tasks) if number in chosen]
    questions = {task.data["question"] for task in kept}
    train = [task for number, task in enumerate(tasks) if number not in chosen and task.data["question"] not in questions]
    return tuple(train), tuple(kept)


def _without(tasks: tuple[Task, ...], kept: tuple[Task, ...], spec: str, held_out: str) -> tuple[Task, ...]:
    """The tasks whose question is not among those held out."""
    questions = {task.data["question"] for task in kept}
    train = tuple(task for task in tasks if task.data["question"] not in questions)
    if not train:
        raise RecipeError(f"`task.held_out`: every question of {spec} is also in {held_out}; name a file of other tasks")
    return train


@lru_cache(maxsize=8)
def _order(seed: int, epoch: int, length: int) -> tuple[int, ...]:
    order = list(range(length))
    random.Random(f"epoch {epoch} of {seed}").shuffle(order)
    return tuple(order)
