"""A checkpoint of several ranks: torch's distributed checkpoint (DCP), which any number of ranks in any layout can read.

A folder holds, beside the Hugging Face export, `ranks/` with every rank's pieces of what is trained and of the optimizer's
state, and last of all the file of `trainer_state` with what is the same on every rank. One rank alone can read it, and
several can read what one alone has written.
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

from areal_actors.engines import trainer_state
from areal_actors.errors import CheckpointError

PIECES = "ranks"
TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False, flatten_optimizer_state_dict=True)
"""Under an adapter the base is frozen, and comes from where the run has it. Flat, the state has a name for each entry of each
tensor, and so that of a rank which holds some tensors only is a part of the whole."""
WHOLE = StateDictOptions(full_state_dict=True, strict=False)


def save(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rest: dict[str, Any]) -> None:
    """Write every rank's pieces, then, when all of them are there, what `rest` says; called on every rank.

    Of `rest`, copies of older weights are left out.
    """
    begun = bool(optimizer.state)
    state: dict[str, Any] = {"model": get_model_state_dict(model, options=TRAINED)}
    if begun:  # torch would make up the state of an optimizer that has none, and count that as a step
        state["optimizer"] = get_optimizer_state_dict(model, optimizer, options=TRAINED)
    save_pieces(state, checkpoint_id=folder / PIECES)
    if dist.get_rank() == 0:
        trainer_state.write(folder, {"optimizer": None, "begun": begun, "adapter": {}, "rest": without_copies(rest)})
    dist.barrier()


def is_in_pieces(state: Mapping[str, Any]) -> bool:
    """Whether a state that `trainer_state.read` has read was written by several ranks."""
    return state["optimizer"] is None


def load(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put back what is trained and the optimizer's state, and return `rest`; called on every rank, or on one alone.

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
    """Without the copies of older weights: they only serve a comparison, and each rank has pieces of them in its own layout."""
    return {name: {} if _of_dictionaries(value) else value for name, value in rest.items()}


def _of_dictionaries(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(entry, dict) for entry in value.values())


def _load_pieces(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, begun: bool) -> None:
    wanted: dict[str, Any] = {"model": get_model_state_dict(model, options=TRAINED)}
    if begun:
        wanted["optimizer"] = get_optimizer_state_dict(model, optimizer, options=TRAINED)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is")  # one rank alone may read them too
            load_pieces(wanted, checkpoint_id=folder)
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        words = str(error).strip().splitlines()[-1]
        raise CheckpointError(f"{folder} cannot be read into this model: {words}; resume from an earlier checkpoint") from error
    set_model_state_dict(model, wanted["model"], options=TRAINED)
    if begun:
        set_optimizer_state_dict(model, optimizer, wanted["optimizer"], options=TRAINED)
    else:
        optimizer.state.clear()


def _load_whole(folder: Path, model: Any, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Share out what one rank alone has written."""
    set_model_state_dict(model, _whole_weights(folder, model, state["adapter"]), options=WHOLE)
    names = model.trained_names
    own = {name for name, _ in model.named_parameters()}
    whole = state["optimizer"]
    counted = [number for group in whole["param_groups"] for number in group["params"]]
    if len(counted) != len(names):
        raise CheckpointError(
            f"{folder} holds an optimizer of {len(counted)} tensors, but this model trains {len(names)}; resume as the run began"
        )
    if not whole["state"]:
        optimizer.state.clear()
        return
    named: dict[str, Any] = {
        "state": {names[number]: entry for number, entry in whole["state"].items() if names[number] in own},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"] if names[number] in own]} for group in whole["param_groups"]
        ],
    }
    set_optimizer_state_dict(model, optimizer, named, options=WHOLE)


def _whole_weights(folder: Path, model: torch.nn.Module, adapter: Mapping[str, Tensor]) -> dict[str, Any]:
    """What is trained, by all names that the model has for it, as one rank alone has written it."""
    try:
        saved = dict(adapter) or {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} does not hold weights of this model: {error}; resume from an earlier checkpoint") from error
    named = list(model.named_parameters(remove_duplicate=False))
    by_tensor = {id(parameter): saved[name] for name, parameter in named if name in saved}
    missing = [name for name, parameter in named if parameter.requires_grad and id(parameter) not in by_tensor]
    shaped = [name for name, parameter in named if id(parameter) in by_tensor and by_tensor[id(parameter)].shape != parameter.shape]
    if missing or shaped:
        raise CheckpointError(
            f"{folder} does not hold weights of this model: missing or of another shape: {', '.join((missing + shaped)[:3])}; "
            "resume from an earlier checkpoint"
        )
    return {name: by_tensor[id(parameter)] for name, parameter in named if id(parameter) in by_tensor}
