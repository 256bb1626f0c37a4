"""Validates the function of the recipe that filters groups."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.batching.assembler import BatcherConfig
from areal_actors.core.layers import Key
from areal_actors.core.named_code import dotted_parts, named_code_problems
from areal_actors.core.problems import Problems
from areal_actors.core.run_facts import RunFacts


def find_problems(batcher: BatcherConfig, algorithm: object, facts: RunFacts) -> Problems:
    """Yields a problem if the named filter is not in its file, or if groups have no rewards that differ."""
    if not facts.has_episodes():
        return
    if (keeps := batcher.filter) and not dotted_parts(keeps):
        yield from named_code_problems(("batcher", "filter"), keeps, "function", "filters.py:keep")
    if batcher.dynamic_sampling and facts.group_size < 2:
        fault = f"found true, but a group of {facts.group_size} has no two rewards that differ"
        yield ("batcher", "dynamic_sampling"), f"{fault}; write algorithm.group_size = 2 or more"
    elif batcher.dynamic_sampling and getattr(algorithm, "baseline_decay", None) is not None:
        fault = (
            "found true, which drops groups whose rewards are equal though they differ from the baseline of their role"
        )
        yield ("batcher", "dynamic_sampling"), f"{fault}; leave it out"
    if batcher.dynamic_sampling and getattr(algorithm, "reward_normalization", "sum") == "separate":
        fault = "found true, which drops groups whose sums are equal though single rewards differ"
        yield ("batcher", "dynamic_sampling"), f'{fault}; leave it out, or write algorithm.reward_normalization = "sum"'


def unused_settings(batcher: BatcherConfig) -> Iterator[Key]:
    """Yields settings of groups that are filtered out where none is."""
    if not batcher.filter and not batcher.dynamic_sampling:
        yield from (("batcher", name) for name in ("dynamic_batch", "max_filtered_batches"))
