"""Low-rank adapters on their way to inference: written in the form of peft, read and merged without it.

A folder that holds `adapter_config.json` is an adapter's: that file says how its factors are to be scaled, and which model
they belong to. Engines merge a version anew from the base as it was loaded, so that rounding never adds up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_actors.engines.weights import appearing, checksum, without_ties
from areal_actors.errors import EngineError
from areal_actors.values import WeightsLocation

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
FACTORS = (".lora_A.weight", ".lora_B.weight")


class AdapterConfig(msgspec.Struct, frozen=True):
    """What merging needs of peft's `adapter_config.json`."""

    r: int
    lora_alpha: float
    use_rslora: bool = False

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied with."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


class Adapter(msgspec.Struct, frozen=True):
    """What is added to a model: `scale · B A` to each weight named."""

    scale: float
    factors: Mapping[str, tuple[Tensor, Tensor]]
    """By the weight's name in the model: A float32 `[rank, in]` and B float32 `[out, rank]`."""

    def added_to(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights that it changes, computed in float32 and then of the base's type."""
        return {
            name: (base[name].float() + (after @ before).mul_(self.scale).to(base[name].device)).to(base[name].dtype)
            for name, (before, after) in self.factors.items()
        }


def holds_adapter(folder: str | Path) -> bool:
    """Whether a version of the weights is an adapter rather than a whole model."""
    return (Path(folder) / CONFIG).is_file()


def write_adapter(tensors: Mapping[str, Tensor], config: str, folder: str | Path, model_folder: str | Path) -> WeightsLocation:
    """Write an adapter in peft's form; `folder` appears complete, or not at all.

    Args:
        tensors: factors by peft's names.
        config: text of peft's `adapter_config.json`.
        folder: replaced if it is there.
        model_folder: the base.
    """
    folder = Path(folder).absolute()
    with appearing(folder) as partial:
        save_adapter(tensors, config, partial)
    return WeightsLocation(folder=str(folder), checksum=checksum(tensors), model=str(model_folder))


def save_adapter(tensors: Mapping[str, Tensor], config: str, folder: Path) -> None:
    """Write an adapter in peft's form into a folder that is there."""
    save_file(without_ties(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(config)


def read_adapter(location: WeightsLocation) -> Adapter:
    """An adapter, on the CPU, verified.

    Raises:
        EngineError: a file is missing or damaged, the checksum differs, or a factor has no partner.
    """
    folder = Path(location.folder)
    try:
        tensors = load_file(folder / WEIGHTS)
        config = msgspec.json.decode((folder / CONFIG).read_bytes(), type=AdapterConfig)
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise EngineError(f"the adapter in {folder} cannot be read ({error}): wait for the next version") from error
    if (found := checksum(tensors)) != location.checksum:
        raise EngineError(f"the adapter in {folder} has checksum {found}, published was {location.checksum}: wait for the next version")
    return Adapter(config.scale, paired(tensors, str(folder)))


def paired(tensors: Mapping[str, Tensor], source: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Factors by the name of the weight they belong to, of tensors by peft's names.

    Raises:
        EngineError: a tensor is no factor, or has no partner.
    """
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        factor = next((factor for factor in FACTORS if name.endswith(factor)), "")
        halves.setdefault(name.removeprefix(PREFIX).removesuffix(factor), {})[factor] = tensor.float()
    odd = [name for name, found in halves.items() if found.keys() != set(FACTORS)]
    if odd:
        raise EngineError(f"the adapter in {source} is not made of pairs lora_A and lora_B: {', '.join(odd[:3])} ({len(odd)} in all)")
    return {f"{name}.weight": (found[FACTORS[0]], found[FACTORS[1]]) for name, found in halves.items()}


class Merging:
    """Merges versions of an adapter into a model's weights, each from the base as it was when the engine loaded it."""

    def __init__(self, model_folder: str, weights: Mapping[str, Tensor]) -> None:
        """Of the model in this folder, whose live weights these are; the base is copied when the first adapter comes."""
        self._model_folder = Path(model_folder).resolve()
        self._weights = weights
        self._base: dict[str, Tensor] = {}
        self._base_is_in_force = True

    def replaced(self) -> None:
        """The weights in force are not the base any more: whole ones have been loaded."""
        self._base_is_in_force = False

    def merged(self, location: WeightsLocation) -> dict[str, Tensor]:
        """The weights that a version changes.

        Raises:
            EngineError: it is damaged, or an adapter of another model, or there is no base to merge it with.
        """
        if Path(location.model).resolve() != self._model_folder:
            raise EngineError(f"the adapter in {location.folder} belongs to {location.model}, but this engine serves {self._model_folder}")
        if not self._base_is_in_force:
            raise EngineError(f"the adapter in {location.folder} has no base here: whole weights were loaded; start the engine again")
        adapter = read_adapter(location)
        self._check_fit(adapter, location.folder)
        with torch.no_grad():
            for name in adapter.factors.keys() - self._base.keys():
                self._base[name] = self._weights[name].detach().clone()
            return adapter.added_to(self._base)

    def _check_fit(self, adapter: Adapter, source: str) -> None:
        for name, (before, after) in adapter.factors.items():
            shape = [len(after), before.shape[1]]
            if name not in self._weights or list(self._weights[name].shape) != shape:
                found = list(self._weights[name].shape) if name in self._weights else "none"
                raise EngineError(f"the adapter in {source} is not this model's: it adds {shape} to {name}, which has shape {found}")
        if self._base and adapter.factors.keys() != self._base.keys():
            raise EngineError(f"the adapter in {source} changes other weights than the versions before it: start the engine again")


def manifest(config: Mapping[str, object]) -> str:
    """The text of `adapter_config.json`."""
    return json.dumps(config, indent=2, sort_keys=True)
