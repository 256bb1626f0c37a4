"""Builders of the actors that are folds over events.

A run's processes have them, and a replay builds them anew from a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from areal_actors.batching.assembler import group_filter
from areal_actors.batching.batcher import Batcher
from areal_actors.core.values import SamplingParams, Task
from areal_actors.evaluation.evaluator import Evaluator
from areal_actors.folder.run_folder import RunFolder
from areal_actors.recipe.examples import examples_of
from areal_actors.recipe.mixture import source_recipes, source_weights
from areal_actors.recipe.recipe import Recipe
from areal_actors.runtime.actor import Actor
from areal_actors.sequences.credit import Credit
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_actors.supervised.example_source import ExampleSource
from areal_actors.tasks.curriculum.schedule import Schedule
from areal_actors.tasks.datasets import Dataset, open_dataset, open_listed
from areal_actors.tasks.mixture.mixed_tasks import MixedTasks, of_source, take_in_turn
from areal_actors.tasks.mixture.source_order import SourceOrder
from areal_actors.tasks.roles import check_roles
from areal_actors.tasks.task_source import TaskSequence, TaskSource
from areal_bus.message import FrozenMeta


class BuildContext(msgspec.Struct, metaclass=FrozenMeta):
    """Inputs for building an actor: the recipe, the run's folder, the names of the instance and of its process."""

    recipe: Recipe
    folder: RunFolder
    instance: str
    process: str = ""


Builder = Callable[[BuildContext], Actor]


def _staleness_gate(context: BuildContext) -> Actor:
    recipe, evaluation = context.recipe, context.recipe.evaluation
    return StalenessGate(
        recipe.staleness_gate,
        group_size=recipe.algorithm.group_size,
        batch_size=recipe.trainer.batch_size,
        steps=recipe.steps,
        after_baseline=evaluation.tasks > 0 and evaluation.baseline == "before",
        evaluations=(
            evaluation.every_steps if evaluation.tasks and evaluation.periodic_exact else 0,
            evaluation.periodic_mode,
        ),
        chosen=recipe.autopilot.lowest(),
    )


def open_tasks(recipe: Recipe, folder: RunFolder, source: str = "") -> Dataset:
    """Open the dataset of a recipe's task, or the tasks that were listed from its environment.

    `source` is its name in a mixture.
    """
    task = recipe.task
    if task.environment:
        assert isinstance(task.held_out, int)
        tasks = open_listed(folder.tasks / source, task.environment, seed=recipe.seed, held_out=task.held_out)
    else:
        needed = ":" not in task.reward  # a function of one's own, or a trained model, may do without
        tasks = open_dataset(
            task.dataset, seed=recipe.seed, held_out=task.held_out, columns=task.columns, answers=needed
        )
    if recipe.algorithm.role_field:
        check_roles(tasks.train, recipe.algorithm.role_field)
    return tasks


def open_draws(recipe: Recipe, folder: RunFolder) -> TaskSequence:
    """Open the training tasks of a recipe, or those of all sources of its mixture."""
    sources = {name: open_tasks(source, folder, name).train for name, source in source_recipes(recipe).items()}
    until = {source.name: source.until for source in recipe.task.mix if source.until is not None}
    if until or recipe.task.curriculum is not None:
        return Schedule(
            sources,
            source_weights(recipe),
            seed=recipe.seed,
            group_size=recipe.algorithm.group_size,
            until=until,
            curriculum=recipe.task.curriculum,
        )
    return MixedTasks(sources, SourceOrder(source_weights(recipe), recipe.seed)) if recipe.task.mix else sources[""]


def _held_out_tasks(recipe: Recipe, folder: RunFolder) -> list[Task]:
    """Returns the held-out tasks that an evaluation has, those of all sources of a mixture in turn."""
    most = recipe.evaluation.tasks
    if not recipe.task.mix:
        held_out = open_tasks(recipe, folder).held_out
        return [held_out.task(number) for number in range(min(most, len(held_out)))]
    by_source: dict[str, list[Task]] = {}
    for name, source in source_recipes(recipe).items():
        held_out = open_tasks(source, folder, name).held_out
        by_source[name] = [of_source(held_out.task(number), name) for number in range(min(most, len(held_out)))]
    return list(take_in_turn(by_source))[:most]


def _sampling_by_source(recipe: Recipe) -> dict[str, SamplingParams]:
    return {name: source.sampling for name, source in source_recipes(recipe).items() if name}


def _task_source(context: BuildContext) -> Actor:
    recipe = context.recipe
    return TaskSource(
        open_draws(recipe, context.folder),
        group_size=recipe.algorithm.group_size,
        sampling=recipe.sampling,
        retries=recipe.task.retries,
        surplus_after=recipe.steps - 1 if recipe.staleness_gate.surplus_groups else None,
        sampling_by_source=_sampling_by_source(recipe),
        role_field=recipe.algorithm.role_field,
    )


def _batcher(context: BuildContext) -> Actor:
    recipe = context.recipe
    return Batcher(
        recipe.batcher,
        group_size=recipe.algorithm.group_size,
        batch_size=recipe.trainer.batch_size,
        max_staleness=recipe.staleness_gate.max_staleness,
        steps=recipe.steps,
        keeps=group_filter(recipe.batcher, Path.cwd()),
        credit=Credit.of(recipe.task),
        baseline_decay=recipe.algorithm.baseline_decay,
    )


def _example_source(context: BuildContext) -> Actor:
    recipe = context.recipe
    examples = len(examples_of(recipe).train)
    return ExampleSource(examples=examples, seed=recipe.seed, batch_size=recipe.trainer.batch_size, steps=recipe.steps)


def _evaluator(context: BuildContext) -> Actor:
    recipe = context.recipe
    return Evaluator(
        recipe.evaluation,
        _held_out_tasks(recipe, context.folder),
        steps=recipe.steps,
        sampling=recipe.sampling,
        retries=recipe.task.retries,
        sampling_by_source=_sampling_by_source(recipe),
    )


FOLDS: Mapping[str, Builder] = {
    "staleness_gate": _staleness_gate,
    "task_source": _task_source,
    "example_source": _example_source,
    "batcher": _batcher,
    "evaluator": _evaluator,
}
"""Builders of the actors that receive events only, and touch nothing else."""
