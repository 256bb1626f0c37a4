"""Common functions of the learning benchmarks: initial models of seeds, accuracy, cached results, and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from history import ROOT

from areal_actors.core.devices import detect_cuda
from areal_actors.core.values import Task
from areal_actors.library.controllers import RolloutController
from areal_actors.processes.recipe_model import model_of
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe
from areal_actors.tasks.datasets import open_dataset

RECIPE = ROOT / "recipes" / "gsm8k_grpo.toml"

T = TypeVar("T")


def load_recipe(files: Sequence[Path], words: Sequence[str]) -> Recipe:
    """Load recipe files with settings; the initial model is created once per seed and cached in `folder`."""
    made = load(files, words, detect_cuda()).recipe
    return msgspec.structs.replace(made, model=model_of(made))


def held_out_tasks(recipe: Recipe) -> list[Task]:
    """Held-out tasks of a run of this recipe."""
    dataset = open_dataset(recipe.task.dataset, seed=recipe.seed, held_out=recipe.evaluation.tasks)
    return [dataset.held_out.task(number) for number in range(recipe.evaluation.tasks)]


def accuracies(model: Path | str, seed: int) -> tuple[float, float]:
    """Accuracy of a model on the main recipe's held-out problems, sampled and greedy."""
    recipe = load([RECIPE], [f"seed={seed}", f"model={model}"], detect_cuda()).recipe
    tasks = held_out_tasks(recipe)
    with RolloutController(recipe, root=ROOT) as rollouts:
        rollouts.update_weights(model)
        return rollouts.evaluate(tasks).accuracy, rollouts.evaluate(tasks, greedy=True).accuracy


def load_results(file: Path, kind: type[T]) -> list[T]:
    """Read a file with one result per line."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines]


def append_result(file: Path, result: object) -> None:
    """Append a result to a file with one result per line."""
    with file.open("ab") as results:
        results.write(msgspec.json.encode(result) + b"\n")


def markdown(header: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table as rows become available."""
    yield _line(header)
    yield "|" + "---|" * len(header)
    yield from map(_line, rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def spread(values: Sequence[float]) -> str:
    """Lowest / median / highest."""
    return " / ".join(f"{value:.3g}" for value in (min(values), statistics.median(values), max(values)))
