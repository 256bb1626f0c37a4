"""Validates the sources of a mixture as such; each source is also checked as if it were the only one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from areal_actors.core.layers import Key
from areal_actors.core.mix_settings import OF_A_SOURCE, MixSource
from areal_actors.core.problems import Problems, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import SamplingParams


def find_problems(task: TaskSettings, sampling: SamplingParams, algorithm: object, facts: RunFacts) -> Problems:
    """Yields what keeps a run from drawing from its sources."""
    if not task.mix or facts.is_serving:
        return
    key = ("task", "mix")
    if not facts.has_episodes():
        yield key, "found sources, but this run learns from examples, which are of one dataset; leave them out"
        return
    if facts.is_online:
        yield key, "found sources, but external agents bring their tasks; leave them out, or name an agent"
        return
    for name in OF_A_SOURCE:
        if getattr(task, name):
            yield ("task", name), "found one beside `[[task.mix]]`; name it in the source that it is for"
    for name, count in Counter(source.name for source in task.mix).items():
        if count > 1:
            yield (*key, "name"), f"found {count} sources called {toml_value(name)}; give each a name of its own"
    for number, source in enumerate(task.mix):
        yield from _sampling_problems(source, number, sampling)
    if batch_statistics := _batch_statistics(algorithm):
        yield batch_statistics


def _sampling_problems(source: MixSource, number: int, sampling: SamplingParams) -> Problems:
    for name, value in source.sampling.items():
        key = ("task", "mix", str(number), "sampling", name)
        if name not in SamplingParams.__struct_fields__:
            yield key, f"is no setting of `[sampling]`; {nearest(name, SamplingParams.__struct_fields__)}"
        elif name == "temperature" and value != sampling.temperature:
            at = f"every token of a run is trained at one, sampling.temperature = {sampling.temperature:g}"
            yield key, f"found {toml_value(value)}, but {at}; leave it out"
        else:
            try:
                msgspec.convert({name: value}, SamplingParams, str_keys=True)
            except msgspec.ValidationError as error:
                yield key, f"found {toml_value(value)}: {error}"


def _batch_statistics(algorithm: object) -> tuple[tuple[str, ...], str] | None:
    """Returns the problem of an algorithm whose statistics are over the whole batch, and so over all sources."""
    if getattr(algorithm, "normalize_advantages", False):
        fault = "found true, which compares the advantages of all sources of `[[task.mix]]` with each other"
        return ("algorithm", "normalize_advantages"), f"{fault}; write false"
    if hasattr(algorithm, "std_around"):
        fault = "divides by the deviation of the rewards of a batch, which has all sources of `[[task.mix]]`"
        return ("algorithm", "name"), f'{fault}; write "grpo", "rloo" or another whose statistics are of a group'
    return None


def unused_settings(task: TaskSettings) -> Iterator[Key]:
    """Yields the tables of sources and of a curriculum, where there are none."""
    for name in ("mix", "curriculum"):
        if not getattr(task, name):
            yield ("task", name)
