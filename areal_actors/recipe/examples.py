"""Opens the examples of a recipe that learns from them, and checks every one before anything starts."""

from __future__ import annotations

import importlib
from pathlib import Path

from areal_actors.core.errors import RecipeError
from areal_actors.recipe.recipe import Recipe
from areal_actors.supervised.examples import ExampleSet, LengthLimit, open_examples

SEQUENCES = "areal_actors.supervised.example_sequences"
"""Needs tokenizers, without which other settings are checked faster."""


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
