"""Validates a recipe that learns from examples instead of episodes. Settings without effect are errors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings
from areal_actors.evaluation.evaluator import EvaluationConfig
from areal_actors.tasks.sources import GSM8K
from areal_actors.training.algorithms import Algorithm

LENGTHS = ("max_length", "overlong")
NO_EFFECT: dict[str, Collection[str]] = {
    **{table: [] for table in ("sampling", "staleness_gate", "batcher", "generation", "gateway")},
    "task": set(TaskSettings.__struct_fields__) - {"dataset", "held_out", "columns", *LENGTHS},
    "trainer": ["logprob_check_sequences"],
    "evaluation": ["periodic_mode", "max_concurrent"],
}
"""Settings that such a run does not use, by table; a table without names is not used at all."""


def find_problems(
    recipe: msgspec.Struct, task: TaskSettings, evaluation: EvaluationConfig, algorithm: Algorithm, facts: RunFacts
) -> Problems:
    """Yields settings without effect, a dataset without such examples, and limits of examples in a run without any."""
    if not facts.learns_from_examples:
        yield from _length_problems(task)
    if facts.trains_examples():
        yield from _example_problems(recipe, task, evaluation, algorithm, facts)


def _example_problems(
    recipe: msgspec.Struct, task: TaskSettings, evaluation: EvaluationConfig, algorithm: Algorithm, facts: RunFacts
) -> Problems:
    name = algorithm.__struct_config__.tag
    for key, stated in _stated_settings(recipe, evaluation):
        value = toml_value(msgspec.to_builtins(stated))
        yield (
            key,
            f'found {value}, but algorithm.name = "{name}" learns from examples and runs no episodes; leave it out',
        )
    if task.dataset == GSM8K and facts.examples == "pairs":
        remedy = 'write "arithmetic", or the path of a .jsonl file of rows with `prompt`, `chosen` and `rejected`'
        yield ("task", "dataset"), f'found "{GSM8K}", but algorithm.name = "{name}" learns from pairs; {remedy}'


def _length_problems(task: TaskSettings) -> Problems:
    for name, value in _differing(task):
        if name in LENGTHS:
            remedy = "sampling.max_tokens and generation.max_model_len limit episodes; leave it out"
            yield (
                ("task", name),
                f"found {toml_value(value)}, but it limits only examples (sft, dpo, reward_model); {remedy}",
            )


def _stated_settings(recipe: msgspec.Struct, evaluation: EvaluationConfig) -> Iterator[tuple[Key, Any]]:
    """Yields settings that differ from their defaults and have no effect."""
    for table, names in NO_EFFECT.items():
        for name, value in _differing(getattr(recipe, table)):
            if not names or name in names:
                yield (table, name), value
    if evaluation.baseline == "concurrent":
        yield ("evaluation", "baseline"), evaluation.baseline


def _differing(table: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    usual = type(table)()
    for name in table.__struct_fields__:
        if (value := getattr(table, name)) != getattr(usual, name):
            yield name, value


def unused_settings(recipe: msgspec.Struct, facts: RunFacts) -> Iterator[Key]:
    """Yields the settings that a run without episodes does not use."""
    if facts.trains_examples():
        for table, names in NO_EFFECT.items():
            yield from ((table, name) for name in names or getattr(recipe, table).__struct_fields__)
