"""What the benchmarks of learning share: the model that a seed begins with, accuracy, results that are kept, and tables of spreads."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from history import ROOT

from areal_actors.controllers import RolloutController
from areal_actors.datasets import open_dataset
from areal_actors.devices import detect_cuda
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.served_model import kept_model
from areal_actors.values import Task

RECIPE = ROOT / "recipes" / "gsm8k_grpo.toml"

T = TypeVar("T")


def loaded(files: Sequence[Path], words: Sequence[str]) -> Recipe:
    """Recipe files with settings laid over them, beginning with the model that they make: kept in `folder`, made once for each seed."""
    made = load(files, words, detect_cuda()).recipe
    return msgspec.structs.replace(made, model=kept_model(made))


def held_out_tasks(recipe: Recipe) -> list[Task]:
    """Those that a run of this recipe is evaluated on."""
    dataset = open_dataset(recipe.task.dataset, seed=recipe.seed, held_out=recipe.evaluation.tasks)
    return [dataset.held_out.task(number) for number in range(recipe.evaluation.tasks)]


def accuracies(model: Path | str, seed: int) -> tuple[float, float]:
    """How many of the main recipe's held-out problems a model solves, sampled and greedily."""
    recipe = load([RECIPE], [f"seed={seed}", f"model={model}"], detect_cuda()).recipe
    tasks = held_out_tasks(recipe)
    with RolloutController(recipe, root=ROOT) as rollouts:
        rollouts.update_weights(model)
        return rollouts.evaluate(tasks).accuracy, rollouts.evaluate(tasks, greedy=True).accuracy


def recalled(file: Path, kind: type[T]) -> list[T]:
    """What was kept in a file of one result a line."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines]


def keep(file: Path, result: object) -> None:
    """Append a result to such a file."""
    with file.open("ab") as results:
        results.write(msgspec.json.encode(result) + b"\n")


def markdown(header: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, each as soon as its row is there."""
    yield _line(header)
    yield "|" + "---|" * len(header)
    yield from map(_line, rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def spread(values: Sequence[float]) -> str:
    """Lowest / median / highest."""
    return " / ".join(f"{value:.3g}" for value in (min(values), statistics.median(values), max(values)))
