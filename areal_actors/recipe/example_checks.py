"""Validates a recipe that learns from examples instead of episodes. Settings without effect are errors."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.errors import RecipeError
from areal_actors.core.settings import TaskSettings
from areal_actors.recipe.errors import Problems, toml_value
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import Key
from areal_actors.supervised.examples import ExampleSet, LengthLimit, open_examples
from areal_actors.tasks.sources import GSM8K

SEQUENCES = "areal_actors.supervised.example_sequences"
"""Needs tokenizers, without which other settings are checked faster."""
LENGTHS = ("max_length", "overlong")
NO_EFFECT: dict[str, Collection[str]] = {
    **{table: [] for table in ("sampling", "staleness_gate", "batcher", "generation", "gateway")},
    "task": set(TaskSettings.__struct_fields__) - {"dataset", "held_out", "columns", *LENGTHS},
    "trainer": ["logprob_check_sequences"],
    "evaluation": ["periodic_mode", "max_concurrent"],
}
"""Settings that such a run does not use, by table; a table without names is not used at all."""


def example_problems(recipe: Recipe) -> Problems:
    """Yields key and complaint: settings without effect, and a dataset without such examples."""
    name = recipe.algorithm.__struct_config__.tag
    for key, stated in _stated_settings(recipe):
        value = toml_value(msgspec.to_builtins(stated))
        yield (
            key,
            f'found {value}, but algorithm.name = "{name}" learns from examples and runs no episodes; leave it out',
        )
    if recipe.task.dataset == GSM8K and recipe.examples() == "pairs":
        remedy = 'write "arithmetic", or the path of a .jsonl file of rows with `prompt`, `chosen` and `rejected`'
        yield ("task", "dataset"), f'found "{GSM8K}", but algorithm.name = "{name}" learns from pairs; {remedy}'


def served_problems(recipe: Recipe) -> Problems:
    """Yields key and complaint if the recipe's model cannot be served to agents."""
    if recipe.algorithm.head == "value":
        remedy = "serve a recipe of another algorithm, and name this checkpoint as its reward"
        yield ("algorithm", "name"), f"found a reward model, which scores conversations and generates no text; {remedy}"


def examples_of(recipe: Recipe) -> ExampleSet:
    """Returns the recipe's examples; raises the errors of `open_examples`."""
    task = recipe.task
    return open_examples(
        task.dataset, recipe.examples(), seed=recipe.seed, held_out=task.held_out, columns=task.columns
    )


def limit_of(recipe: Recipe) -> LengthLimit:
    """Returns the length limit of the recipe's examples."""
    task = recipe.task
    return LengthLimit(tokens=task.max_length, drop=task.overlong == "drop", min_examples=recipe.trainer.batch_size)


def length_problems(recipe: Recipe) -> Problems:
    """Yields key and complaint if example lengths are limited in a run without examples."""
    for name, value in _differing(recipe.task):
        if name in LENGTHS and not recipe.learns_from_examples():
            remedy = "sampling.max_tokens and generation.max_model_len limit episodes; leave it out"
            yield (
                ("task", name),
                f"found {toml_value(value)}, but it limits only examples (sft, dpo, reward_model); {remedy}",
            )


def check_examples(recipe: Recipe) -> None:
    """Check every example before anything starts; also against the model's context, if the model is a local folder.

    For other models the trainer checks the context once the model is loaded.

    Raises:
        RecipeError: there are fewer than one batch.
        SetupError: one is invalid or too long; the message has its place and the remedy.
    """
    opened = examples_of(recipe)
    for examples in (opened.train, opened.held_out):
        for number in range(len(examples)):
            examples[number]  # raises if it is invalid
    if len(opened.train) < recipe.trainer.batch_size:
        raise RecipeError(
            f"`trainer.batch_size`: found {recipe.trainer.batch_size}, but {recipe.task.dataset} has"
            f" {len(opened.train)} {recipe.examples()} besides those held out; write at most {len(opened.train)}"
        )
    model = Path(recipe.model).expanduser()
    if (model / "tokenizer.json").is_file():
        importlib.import_module(SEQUENCES).ExampleSequences(
            opened.train, opened.held_out, scored=recipe.algorithm.head == "value", limit=limit_of(recipe)
        ).begin(str(model))


def _stated_settings(recipe: Recipe) -> Iterator[tuple[Key, Any]]:
    """Yields settings that differ from their defaults and have no effect."""
    for table, names in NO_EFFECT.items():
        for name, value in _differing(getattr(recipe, table)):
            if not names or name in names:
                yield (table, name), value
    if recipe.evaluation.baseline == "concurrent":
        yield ("evaluation", "baseline"), recipe.evaluation.baseline


def _differing(table: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    usual = type(table)()
    for name in table.__struct_fields__:
        if (value := getattr(table, name)) != getattr(usual, name):
            yield name, value
