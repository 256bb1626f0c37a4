"""Consequences of a model's structure for its training, as lines for the plan of a run.

They are read from its folder without torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from areal_actors.core.errors import EngineError
from areal_actors.core.model_config import config_of, has_vision, text_config_of
from areal_actors.weights.weight_files import stored_tensors

ATTENTION_KINDS = frozenset({"full_attention", "sliding_attention", "attention"})
STATE_KINDS = {
    "linear_conv_kernel_dim": "linear_attention",
    "mamba_d_state": "linear_attention",
    "conv_L_cache": "conv",
}
"""Settings of layers with a state, for configurations that do not list their layers."""
LAYER = re.compile(r"\blayers\.(\d+)\.")
MTP = re.compile(r"^mtp\.")
TOWER = re.compile(r"\b(visual|vision_tower|vision_model|vision_encoder|multi_modal_projector|audio_tower)\.")


def state_problem(kinds: Iterable[str]) -> str:
    """The reason why rows cannot be packed with layers of these kinds; empty if they can."""
    named = {"linear_attention" if kind == "mamba" else kind for kind in kinds}  # as transformers names it
    if unsupported := sorted(named - ATTENTION_KINDS):
        return (
            f"its layers of kind {', '.join(unsupported)} carry a state from each token to the next, which rows in one"
            " sequence would mix"
        )
    return ""


def training_notes(folder: str | Path) -> list[str]:
    """Lines about the model in this folder.

    They explain why its rows are padded and not packed, and name the tensors that are not trained.
    """
    notes = []
    if problem := _packing_problem(folder):
        notes.append(f"packing: no, because {problem}")
    if parts := _untrained_parts(folder):
        notes.append(f"not trained, and unchanged in every checkpoint: {' and '.join(parts)}")
    return notes


def _packing_problem(folder: str | Path) -> str:
    config = text_config_of(folder)
    if has_vision(folder):
        return "rows with images are computed one by one"
    listed = config.get("layer_types") or [kind for name, kind in STATE_KINDS.items() if name in config]
    if problem := state_problem(listed):
        return problem
    return "it caps the scores of its attention" if config.get("attn_logit_softcapping") else ""


def _untrained_parts(folder: str | Path) -> list[str]:
    try:
        names = list(stored_tensors(folder))
    except EngineError:
        return []
    config: dict[str, Any] = text_config_of(folder)
    blocks = int(config.get("num_hidden_layers") or 0)
    towers = (
        [name for name in names if TOWER.search(name)]
        if "vision_config" in config_of(folder) and not has_vision(folder)
        else []
    )
    heads = [name for name in names if name not in towers and (MTP.search(name) or _is_beyond(name, blocks))]
    counted = ((towers, "vision tower"), (heads, "prediction of several tokens (MTP)"))
    return [f"{len(untrained)} tensors of its {what}" for untrained, what in counted if untrained]


def _is_beyond(name: str, blocks: int) -> bool:
    match = LAYER.search(name)
    return match is not None and 0 < blocks <= int(match[1])
