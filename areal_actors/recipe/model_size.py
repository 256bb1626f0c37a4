"""Memory that a model's weights take at least, by its number of parameters: activations and KV caches come on top."""

from __future__ import annotations

from pathlib import Path

from areal_actors.core.model_config import text_config_of
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.recipe.recipe import Recipe
from areal_actors.weights.folders import kept_versions
from areal_actors.weights.weight_files import parameter_count, stored_tensors

BYTES = {"float32": 4, "bfloat16": 2}
OPTIMIZER_BYTES = {"adamw": 8, "adam": 8, "sgd": 0, "adafactor": 0, "muon": 4}
"""State of each optimizer in bytes per trained parameter, at least."""
PACKED_BYTES = {"bitsandbytes": 0.516, "torchao": 0.516, "float8": 1.0}
"""Bytes of a packed value; in 4 bits with a byte for the scale of each 64 of them and four for each 256 scales."""
SMALL_MODEL = 10_000_000
"""Parameters below which a model is taken for one of the embedded kind."""


def is_pretrained(model: str) -> bool:
    """Returns True unless the model is the embedded one, or one of its size in a folder of this machine."""
    return model != EMBEDDED and not 0 < parameter_count(Path(model).expanduser()) < SMALL_MODEL


def parameters(recipe: Recipe) -> int:
    """Returns the number of the model's parameters; 0 if it is not in a folder of this machine."""
    return parameter_count(Path(recipe.model).expanduser())


def one_checkpoint_bytes(recipe: Recipe) -> int:
    """Returns bytes of one checkpoint on disk: weights and optimizer state; 0 if the model is not in a folder here."""
    trainer = recipe.trainer
    return parameters(recipe) * (4 + (OPTIMIZER_BYTES[trainer.optimizer.name] if trainer.lora is None else 0))


def weight_bytes(recipe: Recipe) -> float:
    """Returns bytes of the trained model's weights: float32, or the matrices of a frozen base packed."""
    count, lora = parameters(recipe), recipe.trainer.lora
    if not count or lora is None or lora.quantize_base == "off":
        return count * 4.0
    folder = Path(recipe.model).expanduser()
    vocabulary = text_config_of(recipe.model).get("vocab_size")
    shapes = [tensor.shape for tensor in stored_tensors(folder).values()]
    packed = sum(
        rows * columns for rows, columns in (shape for shape in shapes if len(shape) == 2) if rows != vocabulary
    )
    return packed * PACKED_BYTES[lora.quantize_base] + (count - packed) * 4.0


def rank_bytes(recipe: Recipe) -> float:
    """Returns bytes of one rank for its part of weights, gradients and optimizer state.

    All of them are sharded over the ranks.
    """
    trainer = recipe.trainer
    trained = 4 + OPTIMIZER_BYTES[trainer.optimizer.name] if trainer.lora is None else 0
    return (weight_bytes(recipe) + parameters(recipe) * trained) / trainer.ranks


def published_bytes(recipe: Recipe) -> int:
    """Returns bytes of all weight versions that are kept, and of one that is being written.

    0 if unknown, or small as adapters are; those of a rounded base beside them.
    """
    trainer = recipe.trainer
    if not recipe.actors.trainer.count:
        return 0
    if trainer.lora is not None and trainer.lora.published == "adapter":
        rounded = trainer.lora.quantize_base != "off"
        return parameters(recipe) * BYTES[trainer.published_dtype] if rounded else 0
    return (
        parameters(recipe) * BYTES[trainer.published_dtype] * (kept_versions(recipe.staleness_gate.max_staleness) + 1)
    )


def engine_bytes(recipe: Recipe) -> float:
    """Returns bytes of the weights on each device of an inference worker."""
    return parameters(recipe) * BYTES[recipe.generation.dtype] / recipe.generation.tensor_parallel
