"""Settings that follow from measurements of this machine, where a recipe with an own model does not state them.

Slots, groups in flight and time limits of the defaults fit a model that samples thousands of tokens a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from areal_actors.calibration.calibrate import Calibration, Measurement
from areal_actors.core.config import merge_tables
from areal_actors.core.devices import CudaDevices
from areal_actors.core.layers import Key, is_stated
from areal_actors.generation.engines import describe_engine
from areal_actors.recipe.budget import Lengths, seconds_at, step_seconds
from areal_actors.recipe.model_size import is_pretrained, parameters
from areal_actors.recipe.recipe import Recipe

GOOD_SHARE = 0.9
"""Share of the highest speed of generation from which more completions at once are of no use: each of them only takes
longer."""
CALLS = 4
"""Model calls of an episode, one after the other, that fit into a derived time limit."""
MIN_CHECKED, CHECKED_SHARE = 2, 16
"""Sequences of each version whose log-probabilities are checked: one of `CHECKED_SHARE` of a batch, at least
`MIN_CHECKED`."""
MAX_STOP_SECONDS = 120.0
MOST_SEQUENCES = 128
"""Largest number of completions at once that is measured, and that is derived."""
NEEDED = ("config.json", "tokenizer.json")
"""Files of a model's folder without which a run is refused, besides its weights."""


def measurements(recipe: Recipe, cuda: CudaDevices) -> tuple[Measurement | None, Measurement | None]:
    """Measurements of generation and of training that a run of this recipe needs; None for what is not computed here.

    Measured is a pretrained model whose folder is on this machine, on a CPU.
    """
    folder = Path(recipe.model).expanduser()
    whole = parameters(recipe) > 0 and all((folder / name).is_file() for name in NEEDED)
    if cuda.count or not is_pretrained(recipe.model) or not whole:
        return None, None
    generation, trainer, config = recipe.generation, recipe.trainer, str(folder)
    decode = Measurement(
        config=config,
        threads=generation.threads,
        dtype=generation.dtype,
        context=generation.max_model_len,
        most_sequences=MOST_SEQUENCES,
        batch_invariant=generation.batch_invariant == "on"
        or (generation.batch_invariant == "auto" and recipe.staleness_gate.max_staleness == 0),
    )
    train = Measurement(
        config=config,
        threads=trainer.threads,
        dtype=trainer.dtype,
        context=generation.max_model_len,
        most_sequences=1,
        microbatch_tokens=trainer.microbatch_tokens,
        optimizer=trainer.optimizer.name,
    )
    generates = describe_engine(generation.engine).loads_torch and recipe.actors.inference_worker.count > 0
    trains = trainer.ranks == 1 and recipe.actors.trainer.count > 0 and not recipe.is_served()
    return decode if generates else None, train if trains else None


def expected_lengths(recipe: Recipe) -> Lengths:
    """Lengths of prompts and answers as far as the recipe bounds them."""
    answer = min(recipe.sampling.max_tokens, recipe.generation.max_model_len - 1)
    return Lengths(
        prompt=min(recipe.generation.max_model_len / 4, recipe.generation.max_model_len - answer), answer=answer
    )


def with_measured(
    recipe: Recipe, stated: Mapping[str, Any], calibration: Calibration
) -> tuple[Recipe, Mapping[str, Any]]:
    """Returns the recipe with the settings that follow from measurements, and what is stated now, with these."""
    if calibration.decode is None:
        return recipe, stated
    size, measured, longest = recipe.algorithm.group_size, calibration.decode, recipe.sampling.max_tokens
    fastest = max(count / seconds for count, seconds in measured.step_seconds.items())
    together = min(count for count, seconds in measured.step_seconds.items() if count / seconds >= GOOD_SHARE * fastest)
    batch = recipe.trainer.batch_size  # a batch has to fit, whether it is sampled at once or queues
    groups = max(batch, min(together // size, (recipe.staleness_gate.max_staleness + 1) * batch))
    slots = min(MOST_SEQUENCES, max(groups * size, together)) + min(
        recipe.evaluation.max_concurrent, recipe.evaluation.tasks
    )
    answer = CALLS * longest * seconds_at(measured, slots)
    values: dict[Key, Any] = {
        ("generation", "max_num_seqs"): slots,
        ("staleness_gate", "max_concurrent"): groups,
        ("task", "timeout_seconds"): _round_seconds(max(recipe.task.timeout_seconds, answer)),
        ("gateway", "completion_seconds"): _round_seconds(max(recipe.gateway.completion_seconds, answer)),
        ("trainer", "logprob_check_sequences"): max(
            MIN_CHECKED, min(recipe.trainer.logprob_check_sequences, recipe.trainer.batch_size * size // CHECKED_SHARE)
        ),
    }
    if calibration.train is not None:
        training = step_seconds(recipe, calibration, expected_lengths(recipe)).training
        values["watchdog", "stop_seconds"] = _round_seconds(
            min(MAX_STOP_SECONDS, max(recipe.watchdog.stop_seconds, 2 * training))
        )
    for key, value in values.items():
        if not is_stated(stated, key):
            table, name = key
            recipe = replace(recipe, **{table: replace(getattr(recipe, table), **{name: value})})
            stated = merge_tables(stated, {table: {name: value}})
    return recipe, stated


def _round_seconds(seconds: float) -> float:
    """Seconds with two digits, so that a recipe can be read."""
    return float(f"{seconds:.2g}")
