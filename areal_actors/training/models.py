"""Loading and writing of Hugging Face models: causal language models, and the same base models with a scalar head."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import structlog
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from areal_actors.core.errors import EngineError, SetupError
from areal_actors.core.model_config import config_of
from areal_actors.weights.manifest import CURSOR, MANIFEST, PROOF
from areal_actors.weights.model_class import language_model_class
from areal_actors.weights.source_tensors import list_names, note_source, source_of
from areal_actors.weights.transfer import without_ties
from areal_actors.weights.write_tensors import write_tensors

HEAD = "score"
"""Name of the head in sequence classifiers of Hugging Face."""
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.index.json", "config.json", MANIFEST, PROOF, CURSOR)
"""Files that a trainer writes itself, or that describe those of the folder or of the run that wrote it; all others
belong to the tokenizer and are copied."""

DTYPE_FIELDS = ("dtype", "torch_dtype")

logger = structlog.get_logger(__name__)


def load_model(folder: str, head: Literal["tokens", "value"], *, weights: bool = True, saved: bool = True) -> Any:
    """Load a model with float32 weights, on the CPU, without dropout.

    Args:
        folder: a Hugging Face folder with configuration and weights.
        head: `tokens` for a causal language model; `value` for a sequence classifier with a single label, its value. If
            the folder has no scalar head, the head is initialized to 0.
        saved: False if no checkpoint of this model is ever written.
        weights: False creates the model on the meta device, for ranks that receive their weights from another rank.

    Raises:
        SetupError: the folder contains no such model, lacks weights of it, or a checkpoint would lack tensors of the
            folder.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if saved and "quantization_config" in config_of(folder):
        raise SetupError(
            f"{folder}: its weights are quantized, and trained weights are not, so that a checkpoint would be another"
            " model; set `model` to a version in bfloat16, or write one with transformers (`dequantize`, then"
            " `save_pretrained`)"
        )
    try:
        whole = _load_value_model if head == "value" else _load_language_model
        model = whole(folder) if weights else _meta_model(folder, head)
    except (OSError, ValueError) as error:
        raise SetupError(f"{folder}: cannot load a model from this folder: {error}") from error
    if saved and head == "tokens" and (source := note_source(model, folder)) is not None:
        source.check(model)
        if source.carried and weights:
            logger.info(
                "tensors that this class does not compute are not trained, and stay as they are in every checkpoint",
                model=type(model).__name__,
                tensors=list_names(source.carried),
            )
    return model.eval()


def _load_language_model(folder: str) -> Any:
    model, report = language_model_class(folder).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    if absent := sorted(report["missing_keys"]):
        raise ValueError(f"it lacks {list_names(absent)}, which {type(model).__name__} would fill with random numbers")
    return model


def _meta_model(folder: str, head: Literal["tokens", "value"]) -> Any:
    kind, labels = (
        (AutoModelForSequenceClassification, {"num_labels": 1})
        if head == "value"
        else (language_model_class(folder), {})
    )
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
    if missing := sorted(absent - {f"{HEAD}.weight", f"{HEAD}.bias"}):
        raise ValueError(f"it lacks {', '.join(missing[:3])} ({len(missing)} in all)")
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
        raise EngineError(
            f"trainer.recompute_activations: {type(model).__name__} does not support gradient checkpointing; set it to"
            " false"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True  # only the block checks it; its submodules stay in eval mode, without dropout


def write_model(model: Any, state: Mapping[str, Tensor], folder: str, tokenizer_folder: str) -> None:
    """Write a Hugging Face folder: configuration, these weights, and the tokenizer and chat template of another folder.

    A model with noted source tensors is written as it was published: all tensors, by their names there, and its own
    configuration.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    source = source_of(model)
    if source is None:
        model.save_pretrained(target, state_dict=dict(state))
    else:
        write_tensors(without_ties(source.to_checkpoint(model, state)), target)
        config = _with_dtype(config_of(source.folder), str(model.dtype).removeprefix("torch."))
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for file in sorted(Path(tokenizer_folder).iterdir()):
        if file.is_file() and target.resolve() != file.parent.resolve() and not any(map(file.match, WEIGHT_FILES)):
            shutil.copyfile(file, target / file.name)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """A configuration whose types are those of the written weights."""
    changed = {name: dtype if name in DTYPE_FIELDS else value for name, value in config.items()}
    return {name: _with_dtype(value, dtype) if isinstance(value, dict) else value for name, value in changed.items()}
