"""Files of a model's folder that are read without its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_actors.core.durable_files import read_json
from areal_actors.core.routes import RouteShape, shape_of_config

VISION_TYPES = ("qwen2_5_vl",)
"""`model_type` of the supported models with vision."""

LENGTH_DEPENDENT = ("longrope", "su", "dynamic")
"""Kinds of rotary scaling whose frequencies depend on the longest sequence of a batch."""


def has_vision(folder: str | Path) -> bool:
    """True if the model in this folder sees images: it is of a type in `VISION_TYPES`."""
    config = read_json(Path(folder) / "config.json")
    return config.get("model_type") in VISION_TYPES and "image_token_id" in config


def config_of(folder: str | Path) -> dict[str, Any]:
    """Configuration of the model in this folder."""
    return read_json(Path(folder) / "config.json")


def text_config_of(folder: str | Path) -> dict[str, Any]:
    """Configuration of the language model in this folder."""
    config = config_of(folder)
    return config | (config.get("text_config") or {})


def context_of(folder: str | Path) -> int | None:
    """Context length of the model in this folder, RoPE scaling included; None if its configuration does not state it.

    Where frequencies change with the length of a batch (`LENGTH_DEPENDENT`), the context ends before they do: a token's
    log-probability would depend on the other rows of its micro-batch, and engines choose the frequencies otherwise.
    """
    config = text_config_of(folder)
    longest = config.get("max_position_embeddings") or config.get("n_positions")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type")
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    if kind in LENGTH_DEPENDENT:
        return original or config.get("original_max_position_embeddings") or longest
    stretched = int(original * factor) if kind in (None, "yarn") and original and factor else 0
    return max(longest, stretched) if longest else None


def vocabulary_of(folder: str | Path) -> int:
    """Vocabulary size of the model in this folder, which may exceed its tokenizer's.

    0 if its configuration does not state it.
    """
    return int(text_config_of(folder).get("vocab_size") or 0)


def route_shape_of(folder: str | Path) -> RouteShape | None:
    """Mixtures of experts of the model in this folder, whose routes are reported and replayed; None if it has none."""
    return shape_of_config(text_config_of(folder))
