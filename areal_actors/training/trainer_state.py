"""The files of a trainer's checkpoint: a Hugging Face folder, and `trainer_state.pt` beside the weights.

If only an adapter is trained, the folder contains the merged model, and the state the adapter itself: the adapter is
restored bit for bit, and the base is loaded from the run's model.

The state is written last, under a temporary name until complete: a folder that has it is complete.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from areal_actors.core.durable_files import fsync_path
from areal_actors.core.errors import CheckpointError, EngineError
from areal_actors.weights.source_tensors import model_tensors
from areal_actors.weights.transfer import check_fit

STATE_FILE = "trainer_state.pt"
FIELDS = {"optimizer", "adapter", "rest"}


def write(folder: Path, state: dict[str, Any]) -> None:
    """Write the state, which contains only tensors, numbers, text and containers of them."""
    for file in folder.rglob("*"):
        fsync_path(file)
    partial = folder / f"{STATE_FILE}.partial"
    torch.save(state, partial)
    fsync_path(partial)
    partial.replace(folder / STATE_FILE)
    fsync_path(folder)


def read(folder: Path) -> dict[str, Any]:
    """Read the state without executing code from the file.

    Raises:
        CheckpointError: it is missing, damaged or lacks a field.
    """
    file = folder / STATE_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} has no {STATE_FILE}: it is not a checkpoint of a trainer, or is incomplete")
    try:
        state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; resume from an earlier checkpoint") from error
    check_fields(state, FIELDS, folder)
    return state


def check_fields(state: Mapping[str, Any], fields: AbstractSet[str], folder: Path) -> None:
    """Check that a state has all fields.

    Raises:
        CheckpointError: names the missing fields.
    """
    if missing := fields - set(state):
        raise CheckpointError(
            f"{folder / STATE_FILE} lacks {', '.join(sorted(missing))}; it was written by another version of this"
            " program"
        )


def adapter_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The trained tensors of a partly frozen model; {} if all are trained, because the folder contains them."""
    parameters = dict(model.named_parameters())
    trained = {name: parameter.detach() for name, parameter in parameters.items() if parameter.requires_grad}
    return trained if len(trained) < len(parameters) else {}


def restore(model: torch.nn.Module, folder: Path, adapter: Mapping[str, Tensor]) -> None:
    """Restore the adapter, or the folder's weights if there is none.

    Raises:
        CheckpointError: something is missing, damaged, or of another shape.
    """
    own = adapter_of(model)
    if own or adapter:
        if {name: tensor.shape for name, tensor in own.items()} != {
            name: tensor.shape for name, tensor in adapter.items()
        }:
            raise CheckpointError(
                f"{folder} was written with a different [trainer.lora]; resume with the original settings"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(adapter[name])
        return
    try:
        saved = {
            name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()
        }
        saved = dict(model_tensors(model, saved))
        check_fit(model.state_dict(), saved, str(folder))
    except (OSError, SafetensorError, EngineError) as error:
        raise CheckpointError(
            f"{folder} does not contain weights of this model: {error}; resume from an earlier checkpoint"
        ) from error
    # Not strict: of names that share one tensor only one is in the file.
    model.load_state_dict(saved, strict=False)
