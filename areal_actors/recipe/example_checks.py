"""Is a recipe sensible whose run learns from examples instead of episodes? What it has no use for is not dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.datasets import gsm8k
from areal_actors.datasets.examples import ExampleSet, open_examples
from areal_actors.errors import RecipeError
from areal_actors.recipe.complaints import toml_value
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import Key
from areal_actors.text.example_rows import ExampleRows, LengthLimit

LENGTHS = ("max_length", "too_long")
OF_EPISODES = ("sampling", "staleness_gate", "batcher", "generation", "gateway")
"""Tables that say nothing to such a run."""
OF_EXAMPLES = ("dataset", "held_out", "columns", *LENGTHS)
"""What it reads of `[task]`."""


def example_problems(recipe: Recipe) -> Iterator[tuple[Key, str]]:
    """Key and complaint: settings that have nothing to say, and a dataset that has no such examples."""
    name = recipe.algorithm.__struct_config__.tag
    for key, found in _stated(recipe):
        value = toml_value(msgspec.to_builtins(found))
        yield key, f'found {value}, but algorithm.name = "{name}" learns from examples, and no episode is run; leave it out'
    if recipe.task.dataset == gsm8k.NAME and recipe.examples() == "pairs":
        remedy = 'write "arithmetic", or the path of a .jsonl file of rows with `prompt`, `chosen` and `rejected`'
        yield ("task", "dataset"), f'found "{gsm8k.NAME}", but algorithm.name = "{name}" learns from pairs; {remedy}'


def served_problems(recipe: Recipe) -> Iterator[tuple[Key, str]]:
    """Key and complaint when the model of such a recipe is to be served to agents."""
    if recipe.algorithm.head == "value":
        remedy = "serve a recipe of another algorithm, and name the checkpoint where that recipe wants its reward"
        yield ("algorithm", "name"), f"found a reward model, which scores conversations and says nothing itself; {remedy}"


def examples_of(recipe: Recipe) -> ExampleSet:
    """The recipe's examples; raises what `open_examples` does."""
    task = recipe.task
    return open_examples(task.dataset, recipe.examples(), seed=recipe.seed, held_out=task.held_out, columns=task.columns)


def limit_of(recipe: Recipe) -> LengthLimit:
    """How long the recipe's examples may be."""
    task = recipe.task
    return LengthLimit(tokens=task.max_length, drop=task.too_long == "drop", min_examples=recipe.trainer.batch_size)


def length_problems(recipe: Recipe) -> Iterator[tuple[Key, str]]:
    """Key and complaint where examples are bounded in a run that has none."""
    for name, found in _differing(recipe.task):
        if name in LENGTHS and not recipe.learns_from_examples():
            remedy = "sampling.max_tokens and generation.context bound episodes; leave it out"
            yield ("task", name), f"found {toml_value(found)}, but only examples (sft, dpo, reward_model) are bounded by it; {remedy}"


def check_examples(recipe: Recipe) -> None:
    """Look at every example before anything starts; whether it fits into the model's context, if the model is in a folder here.

    Of other models the trainer sees it, as soon as it has one.

    Raises:
        RecipeError: there are fewer than a batch has.
        SetupError: one of them is no such example, or too long; the message says where and what to do.
    """
    found = examples_of(recipe)
    for examples in (found.train, found.held_out):
        for number in range(len(examples)):
            examples.example(number)
    if len(found.train) < recipe.trainer.batch_size:
        raise RecipeError(
            f"`trainer.batch_size`: found {recipe.trainer.batch_size}, but {recipe.task.dataset} has {len(found.train)} "
            f"{recipe.examples()} besides those held out; write at most so many"
        )
    model = Path(recipe.model).expanduser()
    if (model / "tokenizer.json").is_file():
        ExampleRows(found.train, found.held_out, scored=recipe.algorithm.head == "value", limit=limit_of(recipe)).begin(str(model))


def _stated(recipe: Recipe) -> Iterator[tuple[Key, Any]]:
    """Settings that are not as they are when nobody states them, and have nothing to say."""
    for table in OF_EPISODES:
        for name, found in _differing(getattr(recipe, table)):
            yield (table, name), found
    for name, found in _differing(recipe.task):
        if name not in OF_EXAMPLES:
            yield ("task", name), found
    for table, names in (("trainer", ("parity_rows",)), ("evaluation", ("mode_between", "max_concurrent"))):
        for name, found in _differing(getattr(recipe, table)):
            if name in names:
                yield (table, name), found
    if recipe.evaluation.baseline == "beside":
        yield ("evaluation", "baseline"), recipe.evaluation.baseline


def _differing(table: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    usual = type(table)()
    for name in table.__struct_fields__:
        if (found := getattr(table, name)) != getattr(usual, name):
            yield name, found
