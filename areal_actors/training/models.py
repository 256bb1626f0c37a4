"""Loading and writing of Hugging Face models: causal language models, and the same base models with a scalar head."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSequenceClassification
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from areal_actors.core.errors import EngineError, SetupError
from areal_actors.core.model_config import has_vision

HEAD = "score"
"""Name of the head in sequence classifiers of Hugging Face."""
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.index.json", "config.json")
"""Files that a trainer writes itself; all others in a model's folder belong to its tokenizer and are copied."""


def load_model(folder: str, head: Literal["tokens", "value"], *, weights: bool = True) -> Any:
    """Load a model with float32 weights, on the CPU, without dropout.

    Args:
        folder: a Hugging Face folder with configuration and weights.
        head: `tokens` for a causal language model; `value` for a sequence classifier with a single label, its value. If the folder
            has no scalar head, the head is initialized to 0.
        weights: False creates the model on the meta device, for ranks that receive their weights from another rank.

    Raises:
        SetupError: the folder contains no such model.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        if not weights:
            return _meta_model(folder, head).eval()
        model = _load_value_model(folder) if head == "value" else _language_model(folder).from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise SetupError(f"{folder}: cannot load a model from this folder: {error}") from error
    return model.eval()


def _language_model(folder: str) -> Any:
    return AutoModelForImageTextToText if has_vision(folder) else AutoModelForCausalLM


def _meta_model(folder: str, head: Literal["tokens", "value"]) -> Any:
    kind, labels = (AutoModelForSequenceClassification, {"num_labels": 1}) if head == "value" else (_language_model(folder), {})
    config = AutoConfig.from_pretrained(folder, **labels)
    with torch.device("meta"):
        return kind.from_config(config, dtype=torch.float32)


def _load_value_model(folder: str) -> Any:
    config = AutoConfig.from_pretrained(folder, num_labels=1)
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            folder, config=config, dtype=torch.float32, output_loading_info=True
        )
    finally:
        transformers_logging.set_verbosity(verbosity)
    head = getattr(model, HEAD, None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise ValueError(f"{type(model).__name__} has no scalar head named `{HEAD}`")
    absent = set(report["missing_keys"])
    if others := sorted(absent - {f"{HEAD}.weight", f"{HEAD}.bias"}):
        raise ValueError(f"it lacks {', '.join(others[:3])} ({len(others)} in all)")
    if absent:
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
    return model


def recompute_activations(model: Any) -> None:
    """Enable gradient checkpointing of the blocks; gradients stay bit-identical.

    Raises:
        EngineError: the model does not support it.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise EngineError(f"trainer.recompute_activations: {type(model).__name__} does not support gradient checkpointing; set it to false")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True  # only the block checks it; its submodules stay in eval mode, without dropout


def write_model(model: Any, state: Mapping[str, Tensor], folder: str, tokenizer_folder: str) -> None:
    """Write a Hugging Face folder: configuration, these weights, and the tokenizer and chat template of another folder."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target, state_dict=dict(state))
    for file in sorted(Path(tokenizer_folder).iterdir()):
        if file.is_file() and target.resolve() != file.parent.resolve() and not any(map(file.match, WEIGHT_FILES)):
            shutil.copyfile(file, target / file.name)
