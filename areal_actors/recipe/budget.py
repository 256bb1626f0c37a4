"""Memory, disk and time of a run of a model of one's own, from its settings and what was measured on this machine.

Sizes are those of memory that processes allocate: files of weights, which several of them map, are in shared memory and
counted there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from areal_actors.calibration.calibrate import Calibration, DecodeCalibration, TrainCalibration
from areal_actors.core.actor_settings import processes_of
from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.machine import Machine, detect_machine
from areal_actors.core.model_config import text_config_of
from areal_actors.core.problems import Problems
from areal_actors.recipe.model_size import (
    BYTES,
    OPTIMIZER_BYTES,
    one_checkpoint_bytes,
    parameters,
    published_bytes,
    weight_bytes,
)
from areal_actors.recipe.recipe import Recipe

LIGHT_BYTES = 60 * MEBIBYTE
"""Memory of a process without tensors."""
SERVER_BYTES = 40 * MEBIBYTE
"""Memory of nats-server and of the command itself beyond `LIGHT_BYTES`."""
CHUNK_LOGITS, CHUNK_TOKENS, SAVED_PROBABILITIES = 2**22, 256, 2**24
"""As in `training/packing/token_scores.py`, on a CPU."""
CHUNK_COPIES = 3
"""Tensors of the size of a chunk's logits that exist at once."""
USABLE = 0.95
"""Share of the machine's memory that a run may take."""
COPY_BYTES_PER_SECOND = 2.5e9
"""Speed of writing published weights, reading them, and their checksums, each of which takes as many bytes."""


class ProcessMemory(NamedTuple):
    """Memory of one process at its peak."""

    process: str
    content: str
    size: int
    """Bytes."""


class StepSeconds(NamedTuple):
    """Seconds that a step takes at most: all answers have `sampling.max_tokens` tokens."""

    generating: float
    training: float
    step: float


class Lengths(NamedTuple):
    """Mean tokens of a prompt and of an answer."""

    prompt: float
    answer: float


def cache_bytes_per_token(recipe: Recipe) -> int:
    """Bytes of keys and values of one token in the embedded engine."""
    config = text_config_of(recipe.model)
    heads = config.get("num_attention_heads") or 1
    width = config.get("head_dim") or config.get("hidden_size", 0) // heads
    return int(
        2
        * config.get("num_hidden_layers", 0)
        * (config.get("num_key_value_heads") or heads)
        * width
        * BYTES[recipe.generation.dtype]
    )


def process_memory(recipe: Recipe, calibration: Calibration, lengths: Lengths) -> list[ProcessMemory]:
    """Memory of each process of the run, largest first."""
    uses = []
    hosted: dict[str, list[str]] = {}
    for name in recipe.actors.__struct_fields__:
        for process in processes_of(getattr(recipe.actors, name)):
            hosted.setdefault(process, []).append(name)
    for process, actors in hosted.items():
        if "inference_worker" in actors and calibration.decode is not None:
            uses.append(ProcessMemory(process, *_engine_memory(recipe, calibration.decode, lengths)))
        elif "trainer" in actors and calibration.train is not None:
            uses.append(ProcessMemory(process, *_trainer_memory(recipe, calibration.train, lengths)))
        else:
            uses.append(ProcessMemory(process, "no tensors", LIGHT_BYTES))
    uses.append(ProcessMemory("the command and nats-server", "log, live view", LIGHT_BYTES + SERVER_BYTES))
    return sorted(uses, key=lambda use: -use.size)


def _engine_memory(recipe: Recipe, measured: DecodeCalibration, lengths: Lengths) -> tuple[str, int]:
    """Content and bytes of an inference worker: weights, the KV cache of the tokens in flight, logits."""
    together = completions_at_once(recipe)
    weights = parameters(recipe) * BYTES[recipe.generation.dtype]
    tokens = min(lengths.prompt + lengths.answer, recipe.generation.max_model_len)
    cache = int(together * tokens * cache_bytes_per_token(recipe))
    logits = CHUNK_COPIES * together * vocabulary(recipe) * 4
    content = f"weights {_size(weights)}, KV cache of {together} completions {_size(cache)}, logits {_size(logits)}"
    return content, measured.base_bytes + weights + cache + logits


def completions_at_once(recipe: Recipe) -> int:
    """Largest number of completions that one inference worker samples at once."""
    if recipe.is_served():
        return recipe.generation.max_num_seqs
    episodes = recipe.concurrent_groups() * recipe.algorithm.group_size + min(
        recipe.evaluation.max_concurrent, recipe.evaluation.tasks
    )
    return min(recipe.generation.max_num_seqs, -(-episodes // max(recipe.actors.inference_worker.count, 1)))


def _trainer_memory(recipe: Recipe, measured: TrainCalibration, lengths: Lengths) -> tuple[str, int]:
    """Content and bytes of the trainer.

    Weights, gradients, optimizer, one micro-batch, which a small batch does not fill.
    """
    trainer, count = recipe.trainer, parameters(recipe)
    frozen = sum(count * 4 for _ in recipe.algorithm.models) + (
        count * 16 if recipe.algorithm.critic is not None else 0
    )
    state = (4 + OPTIMIZER_BYTES[trainer.optimizer.name]) * count if trainer.lora is None else 0
    size, tokens = vocabulary(recipe), min(trainer.microbatch_tokens, batch_tokens(recipe, lengths))
    chunk = max(CHUNK_TOKENS, CHUNK_LOGITS // max(size, 1)) * size * 4
    activations = int(tokens * measured.token_bytes)
    activations += CHUNK_COPIES * chunk + min(SAVED_PROBABILITIES * 4, int(tokens * size * 4))
    weights = int(weight_bytes(recipe))
    content = f"weights {_size(weights)}, gradients and optimizer {_size(state)}, a micro-batch {_size(activations)}"
    if frozen:
        content += f", further models {_size(frozen)}"
    return content, measured.base_bytes + weights + state + activations + frozen


def batch_tokens(recipe: Recipe, lengths: Lengths) -> float:
    """Tokens that the trainer computes for a batch: those of a prompt once for its group."""
    return recipe.trainer.batch_size * (lengths.prompt + recipe.algorithm.group_size * lengths.answer)


def vocabulary(recipe: Recipe) -> int:
    """Entries of the model's vocabulary."""
    return int(text_config_of(recipe.model).get("vocab_size") or 0)


def checkpoint_bytes(recipe: Recipe) -> int:
    """Disk of all checkpoints of a run at once: those that are kept, and one that is being written."""
    checkpoint = recipe.checkpoint
    kept = min(checkpoint.keep_last, recipe.steps // checkpoint.every_steps + 1) if checkpoint.every_steps else 1
    return one_checkpoint_bytes(recipe) * (kept + (1 if checkpoint.keep_best else 0) + 1)


def step_seconds(recipe: Recipe, calibration: Calibration, lengths: Lengths) -> StepSeconds:
    """Seconds of a step with answers of these lengths."""
    generating = _generating_seconds(recipe, calibration.decode, lengths) if calibration.decode is not None else 0.0
    training = _training_seconds(recipe, calibration.train, lengths) if calibration.train is not None else 0.0
    together = recipe.staleness_gate.max_staleness > 0
    return StepSeconds(generating, training, max(generating, training) if together else generating + training)


def _generating_seconds(recipe: Recipe, measured: DecodeCalibration, lengths: Lengths) -> float:
    """Seconds in which the inference workers sample a batch and load the weights of a step."""
    size, workers = recipe.algorithm.group_size, max(recipe.actors.inference_worker.count, 1)
    episodes = recipe.trainer.batch_size * size / workers
    ahead = episodes * (1 + recipe.staleness_gate.max_staleness)
    together = max(1.0, min(recipe.generation.max_num_seqs, recipe.concurrent_groups() * size / workers, ahead))
    decoding = episodes * lengths.answer / together * seconds_at(measured, together)
    prompts = episodes / size * lengths.prompt
    again = (
        together / size * lengths.prompt + together * lengths.answer / 2 if recipe.staleness_gate.max_staleness else 0.0
    )
    loading = 2 * parameters(recipe) * BYTES[recipe.trainer.published_dtype] / COPY_BYTES_PER_SECOND
    return decoding + (prompts + again) * measured.prefill_seconds + loading


def _training_seconds(recipe: Recipe, measured: TrainCalibration, lengths: Lengths) -> float:
    """Seconds of a step of the trainer, with the check of log-probabilities and the publication of weights."""
    trainer, size = recipe.trainer, recipe.algorithm.group_size
    answers = trainer.batch_size * size * lengths.answer
    computed = trainer.batch_size * lengths.prompt + answers
    versions = recipe.staleness_gate.max_staleness + 1
    checked = min(trainer.logprob_check_sequences * versions, trainer.batch_size * size)
    check = (
        checked * (lengths.prompt + lengths.answer) * measured.forward_seconds
        + checked * lengths.answer * measured.head_seconds / 3
    )
    publishing = 2 * parameters(recipe) * BYTES[trainer.published_dtype] / COPY_BYTES_PER_SECOND
    further = len(recipe.algorithm.models) * (computed * measured.forward_seconds + answers * measured.head_seconds / 3)
    return (
        computed * measured.train_seconds
        + answers * measured.head_seconds
        + measured.update_seconds
        + check
        + publishing
        + further
    )


def seconds_at(measured: DecodeCalibration, together: float) -> float:
    """Seconds of a decode step of this number of completions, between the measured numbers along a line."""
    counts = sorted(measured.step_seconds)
    below = max((count for count in counts if count <= together), default=counts[0])
    above = min((count for count in counts if count >= together), default=counts[-1])
    low, high = measured.step_seconds[below], measured.step_seconds[above]
    if above == below:
        return high * max(1.0, together / above)
    return low + (high - low) * (together - below) / (above - below)


def describe_budget(
    recipe: Recipe, calibration: Calibration, lengths: Lengths, machine: Machine | None = None
) -> Iterator[tuple[str, str]]:
    """Yields label and text of `check`'s lines about memory, disk and time on a machine, this one if None."""
    machine = machine or detect_machine(Path(recipe.folder))
    uses = process_memory(recipe, calibration, lengths)
    shared, disk = published_bytes(recipe), checkpoint_bytes(recipe)
    total = sum(use.size for use in uses) + shared
    yield (
        "memory",
        (
            f"{_size(total)} of {_size(machine.memory_bytes)}: processes, and {_size(shared)} of published weights in"
            " shared memory"
        ),
    )
    width = max(len(use.process) for use in uses)
    for use in uses:
        yield "", f"{use.process:<{width}}  {_size(use.size)}: {use.content}"
    yield (
        "disk",
        (
            f"{_size(disk)} of {_size(machine.disk_bytes)} free, at most: checkpoints with the one being written,"
            " besides the log"
        ),
    )
    seconds = step_seconds(recipe, calibration, lengths)
    if calibration.decode is not None:
        measured = sorted(calibration.decode.step_seconds.items())
        yield (
            "speed",
            (
                f"{', '.join(f'{count / taken:.0f} tokens/s with {count}' for count, taken in measured)} completions at"
                " once, measured"
            ),
        )
    lengths_text = f"prompts of {lengths.prompt:.0f} tokens and answers of {lengths.answer:.0f}"
    parts = f"generation {seconds.generating:.1f} s, training {seconds.training:.1f} s"
    yield (
        "time",
        (
            f"{seconds.step:.1f} s a step ({parts}) with {lengths_text}; {duration(seconds.step * recipe.steps)} for"
            f" {recipe.steps} steps"
        ),
    )


def budget_problems(
    recipe: Recipe, calibration: Calibration, lengths: Lengths, machine: Machine | None = None
) -> Problems:
    """Yields what does not fit into the machine, this one if None, with the setting that takes most of it."""
    machine = machine or detect_machine(Path(recipe.folder))
    uses = process_memory(recipe, calibration, lengths)
    needed = sum(use.size for use in uses) + published_bytes(recipe)
    if needed > USABLE * machine.memory_bytes:
        key, remedy = _memory_remedy(recipe, calibration, lengths)
        yield (
            key,
            f"the run takes {_size(needed)} of memory, and this machine has {_size(machine.memory_bytes)}; {remedy}",
        )
    if (disk := checkpoint_bytes(recipe)) > machine.disk_bytes:
        remedy = "free some, write another `folder`, or lower checkpoint.keep_last"
        yield (
            ("checkpoint", "keep_last"),
            f"checkpoints take up to {_size(disk)}, and {_size(machine.disk_bytes)} are free; {remedy}",
        )


def _memory_remedy(recipe: Recipe, calibration: Calibration, lengths: Lengths) -> tuple[tuple[str, ...], str]:
    """The setting that takes most memory of those that can be lowered, and what to write."""
    count, trainer = parameters(recipe), recipe.trainer
    together = completions_at_once(recipe)
    token_bytes = calibration.train.token_bytes if calibration.train is not None else 0.0
    candidates: list[tuple[float, tuple[str, ...], str]] = [
        (
            together * (lengths.prompt + lengths.answer) * cache_bytes_per_token(recipe),
            ("generation", "max_num_seqs"),
            f"lower generation.max_num_seqs, {recipe.generation.max_num_seqs}",
        ),
        (
            trainer.microbatch_tokens * token_bytes,
            ("trainer", "microbatch_tokens"),
            (
                f"lower trainer.microbatch_tokens, {trainer.microbatch_tokens}, or set trainer.recompute_activations ="
                " true"
            ),
        ),
        (
            count * 8.0 if trainer.lora is None else 0.0,
            ("trainer", "lora"),
            "train an adapter ([trainer.lora]), or take a smaller model",
        ),
    ]
    _, key, remedy = max(candidates)
    return key, remedy


def duration(seconds: float) -> str:
    """Formats seconds: `45 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
