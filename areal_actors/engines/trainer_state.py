"""The files of a trainer's checkpoint: a Hugging Face folder, and `trainer_state.pt` beside the weights.

Where only an adapter is trained, the folder holds the model that it makes with its base, and the state the adapter itself:
what is trained is restored to the bit, and the base comes from where the run has it.

The state is written last, and under another name until it is whole: a folder that has it is complete.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from areal_actors.durable_files import fsync_path
from areal_actors.engines.weights import check_fit
from areal_actors.errors import CheckpointError, EngineError

STATE_FILE = "trainer_state.pt"
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.index.json", "config.json")
"""What a trainer writes itself; all else in a model's folder belongs to its tokenizer and is copied."""
FIELDS = {"optimizer", "adapter", "rest"}


def copy_tokenizer(model_folder: Path, target: Path) -> None:
    """Copy tokenizer and chat template, so that the checkpoint can be served like the model it came from."""
    if model_folder.resolve() == target.resolve():
        return
    for file in sorted(model_folder.iterdir()):
        if file.is_file() and not any(file.match(pattern) for pattern in WEIGHT_FILES):
            shutil.copyfile(file, target / file.name)


def write(folder: Path, state: dict[str, Any]) -> None:
    """Write the state; it holds nothing but tensors, numbers, text and containers of them."""
    for file in folder.rglob("*"):
        fsync_path(file)
    partial = folder / f"{STATE_FILE}.partial"
    torch.save(state, partial)
    fsync_path(partial)
    partial.replace(folder / STATE_FILE)
    fsync_path(folder)


def read(folder: Path) -> dict[str, Any]:
    """Read the state; nothing in the file is executed.

    Raises:
        CheckpointError: it is missing, damaged or lacks a field.
    """
    file = folder / STATE_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} has no {STATE_FILE}: it is not a checkpoint of a trainer, or was never finished")
    try:
        state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; resume from an earlier checkpoint") from error
    check_fields(state, FIELDS, folder)
    return state


def check_fields(state: Mapping[str, Any], fields: AbstractSet[str], folder: Path) -> None:
    """Refuse a state that lacks something.

    Raises:
        CheckpointError: it names what.
    """
    if missing := fields - set(state):
        raise CheckpointError(
            f"{folder / STATE_FILE} lacks {', '.join(sorted(missing))}; it was written by another version of this program"
        )


def adapter_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The trained tensors of a model in which others are frozen; {} where all are trained, for these lie in the folder."""
    parameters = dict(model.named_parameters())
    trained = {name: parameter.detach() for name, parameter in parameters.items() if parameter.requires_grad}
    return trained if len(trained) < len(parameters) else {}


def restore(model: torch.nn.Module, folder: Path, adapter: Mapping[str, Tensor]) -> None:
    """Put back the adapter, or the folder's weights where there is none.

    Raises:
        CheckpointError: something is missing, damaged, or of another shape.
    """
    own = adapter_of(model)
    if not own and not adapter:
        restore_weights(model, folder)
        return
    shapes = [{name: tensor.shape for name, tensor in side.items()} for side in (own, adapter)]
    if shapes[0] != shapes[1]:
        raise CheckpointError(f"{folder} was written under another [trainer.lora]; resume with the one that the run began with")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(adapter[name])


def restore_weights(model: torch.nn.Module, folder: Path) -> None:
    """Put the folder's weights into the model.

    Raises:
        CheckpointError: some are missing, damaged, or of another shape.
    """
    try:
        saved = {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}
        check_fit(model.state_dict(), saved, str(folder))
    except (OSError, SafetensorError, EngineError) as error:
        raise CheckpointError(f"{folder} does not hold weights of this model: {error}; resume from an earlier checkpoint") from error
    # Not strict: of names that share one tensor only one is in the file.
    model.load_state_dict(saved, strict=False)
