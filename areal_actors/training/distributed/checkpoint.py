"""A checkpoint of several ranks.

Torch's distributed checkpoint (DCP), which any number of ranks in any layout can read.
Besides the Hugging Face export, a folder contains `ranks/` with every rank's shards of the trained weights and of the
optimizer state, and, written last, the file of `trainer_state` with the state common to all ranks. A single process can
read it, and several ranks can read the checkpoint of a single process.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_pieces
from torch.distributed.checkpoint.state_dict_saver import save as save_pieces

from areal_actors.core.errors import CheckpointError
from areal_actors.training import trainer_state
from areal_actors.weights.source_tensors import model_tensors

PIECES = "ranks"
TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False, flatten_optimizer_state_dict=True)
"""Under an adapter the frozen base is loaded from the run's model. The flattened state has one name per entry and
tensor, so that the state of a rank with only some tensors is a subset of the whole."""
WHOLE = StateDictOptions(full_state_dict=True, strict=False)


def save(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rest: dict[str, Any]) -> None:
    """Write every rank's shards, then `rest` without copies of older weights; call on every rank."""
    begun = bool(optimizer.state)
    state: dict[str, Any] = {"model": get_model_state_dict(model, options=TRAINED)}
    if begun:  # torch would initialize an empty optimizer state, and count that as a step
        state["optimizer"] = get_optimizer_state_dict(model, optimizer, options=TRAINED)
    save_pieces(state, checkpoint_id=folder / PIECES)
    if dist.get_rank() == 0:
        trainer_state.write(folder, {"optimizer": None, "begun": begun, "adapter": {}, "rest": without_copies(rest)})
    dist.barrier()


def is_in_pieces(state: Mapping[str, Any]) -> bool:
    """True if a state from `trainer_state.read` was written by several ranks."""
    return state["optimizer"] is None


def load(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore the trained weights and the optimizer state, and return `rest`.

    Call on every rank, or in a single process.

    Raises:
        CheckpointError: something is missing, damaged or does not fit.
    """
    state = trainer_state.read(folder)
    if is_in_pieces(state):
        _load_pieces(folder / PIECES, model, optimizer, begun=state["begun"])
    else:
        _load_whole(folder, model, optimizer, state)
    return without_copies(state["rest"])


def without_copies(rest: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the copies of older weights.

    They only serve a comparison, and each rank has shards of them in its own layout.
    """
    return {name: {} if _of_dictionaries(value) else value for name, value in rest.items()}


def _of_dictionaries(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(entry, dict) for entry in value.values())


def _load_pieces(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, begun: bool) -> None:
    wanted: dict[str, Any] = {"model": get_model_state_dict(model, options=TRAINED)}
    if begun:
        wanted["optimizer"] = get_optimizer_state_dict(model, optimizer, options=TRAINED)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is")  # a single process may read them too
            load_pieces(wanted, checkpoint_id=folder)
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise CheckpointError(
            f"{folder} cannot be loaded into this model: {reason}; resume from an earlier checkpoint"
        ) from error
    set_model_state_dict(model, wanted["model"], options=TRAINED)
    if begun:
        set_optimizer_state_dict(model, optimizer, wanted["optimizer"], options=TRAINED)
    else:
        optimizer.state.clear()


def _load_whole(folder: Path, model: Any, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Distribute the checkpoint of a single process."""
    set_model_state_dict(model, _whole_weights(folder, model, state["adapter"]), options=WHOLE)
    names = model.trained_names
    own = {name for name, _ in model.named_parameters()}
    whole = state["optimizer"]
    counted = [number for group in whole["param_groups"] for number in group["params"]]
    if len(counted) != len(names):
        raise CheckpointError(
            f"{folder} has optimizer state for {len(counted)} tensors, expected {len(names)}; resume with the run's"
            " original settings"
        )
    if not whole["state"]:
        optimizer.state.clear()
        return
    named: dict[str, Any] = {
        "state": {names[number]: entry for number, entry in whole["state"].items() if names[number] in own},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"] if names[number] in own]}
            for group in whole["param_groups"]
        ],
    }
    set_optimizer_state_dict(model, optimizer, named, options=WHOLE)


def _whole_weights(folder: Path, model: torch.nn.Module, adapter: Mapping[str, Tensor]) -> dict[str, Any]:
    """Trained tensors from the checkpoint of a single process, under all their names in the model."""
    try:
        files = sorted(folder.glob("*.safetensors"))
        saved = adapter or model_tensors(
            model, {name: tensor for file in files for name, tensor in load_file(file).items()}
        )
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} does not contain weights of this model: {error}; resume from an earlier checkpoint"
        ) from error
    named = list(model.named_parameters(remove_duplicate=False))
    by_tensor = {id(parameter): saved[name] for name, parameter in named if name in saved}
    missing = [name for name, parameter in named if parameter.requires_grad and id(parameter) not in by_tensor]
    shaped = [
        name
        for name, parameter in named
        if id(parameter) in by_tensor and by_tensor[id(parameter)].shape != parameter.shape
    ]
    if missing or shaped:
        raise CheckpointError(
            f"{folder} does not contain weights of this model: missing or of another shape:"
            f" {', '.join((missing + shaped)[:3])}; resume from an earlier checkpoint"
        )
    return {name: by_tensor[id(parameter)] for name, parameter in named if id(parameter) in by_tensor}
