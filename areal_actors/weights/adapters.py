"""LoRA adapters for inference: written in peft's format, read and merged without peft.

A folder with `adapter_config.json` holds an adapter: that file has the scale of its factors and its base model. Engines
merge each version with the base weights as they were loaded, so rounding errors do not accumulate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_actors.core.errors import EngineError
from areal_actors.core.values import WeightsLocation
from areal_actors.weights.folders import ADAPTER_CONFIG
from areal_actors.weights.transfer import atomic_folder, checksum, without_ties
from areal_actors.weights.weight_files import ADAPTER_PREFIX, FACTORS

WEIGHTS = "adapter_model.safetensors"


class AdapterConfig(msgspec.Struct, frozen=True):
    """Fields of peft's `adapter_config.json` that merging needs."""

    r: int
    lora_alpha: float
    use_rslora: bool = False

    @property
    def scale(self) -> float:
        """Scale of the product of the factors."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


class Adapter(msgspec.Struct, frozen=True):
    """Low-rank update of a model: `scale · B A` is added to each named weight."""

    scale: float
    factors: Mapping[str, tuple[Tensor, Tensor]]
    """By the weight's name in the model: A float32 `[rank, in]` and B float32 `[out, rank]`."""

    def apply_to(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The changed weights, computed in float32 and cast to the dtype of the base."""
        return {
            name: (base[name].float() + (after @ before).mul_(self.scale).to(base[name].device)).to(base[name].dtype)
            for name, (before, after) in self.factors.items()
        }


def write_adapter(
    tensors: Mapping[str, Tensor], config: str, folder: str | Path, model_folder: str | Path, base: str = ""
) -> WeightsLocation:
    """Write an adapter in peft's format; `folder` appears atomically.

    Args:
        tensors: factors by peft's names.
        config: text of peft's `adapter_config.json`.
        folder: replaced if it exists.
        model_folder: the model.
        base: folder of its rounded base; empty if the model itself is the base.
    """
    folder = Path(folder).absolute()
    with atomic_folder(folder) as partial:
        save_adapter(tensors, config, partial)
    return WeightsLocation(folder=str(folder), checksum=checksum(tensors), model=str(model_folder), base=base)


def save_adapter(tensors: Mapping[str, Tensor], config: str, folder: Path) -> None:
    """Write an adapter in peft's format into an existing folder."""
    save_file(without_ties(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(config)


def read_adapter(location: WeightsLocation) -> Adapter:
    """Returns a verified adapter, on the CPU.

    Raises:
        EngineError: a file is missing or damaged, the checksum differs, or a factor has no partner.
    """
    folder = Path(location.folder)
    try:
        tensors = load_file(folder / WEIGHTS)
        config = msgspec.json.decode((folder / ADAPTER_CONFIG).read_bytes(), type=AdapterConfig)
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise EngineError(f"the adapter in {folder} cannot be read ({error}): wait for the next version") from error
    if (actual_checksum := checksum(tensors)) != location.checksum:
        raise EngineError(
            f"the adapter in {folder} has checksum {actual_checksum}, expected {location.checksum}: wait for the next"
            " version"
        )
    return Adapter(config.scale, pair_factors(tensors, str(folder)))


def pair_factors(tensors: Mapping[str, Tensor], source: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Pairs of factors by weight name, from tensors by peft's names.

    Raises:
        EngineError: a tensor is no factor, or has no partner.
    """
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        factor = next((factor for factor in FACTORS if name.endswith(factor)), "")
        halves.setdefault(name.removeprefix(ADAPTER_PREFIX).removesuffix(factor), {})[factor] = tensor.float()
    odd = [name for name, factors in halves.items() if factors.keys() != set(FACTORS)]
    if odd:
        raise EngineError(
            f"the adapter in {source} does not consist of pairs lora_A and lora_B: {', '.join(odd[:3])} ({len(odd)} in"
            " all)"
        )
    return {f"{name}.weight": (found[FACTORS[0]], found[FACTORS[1]]) for name, found in halves.items()}


class AdapterMerger:
    """Merges adapter versions with the base weights as the engine loaded them."""

    def __init__(self, model_folder: str, weights: Mapping[str, Tensor]) -> None:
        """`weights` are the live weights of the model in this folder.

        The base is copied when the first adapter arrives.
        """
        self._model_folder = Path(model_folder).resolve()
        self._weights = weights
        self._base: dict[str, Tensor] = {}
        self._base_is_loaded = True

    def discard_base(self) -> None:
        """Note that full weights replaced the base weights."""
        self._base_is_loaded = False

    def merge(self, location: WeightsLocation) -> dict[str, Tensor]:
        """Returns the weights that a version changes.

        Raises:
            EngineError: the adapter is damaged or belongs to another model, or the base weights were replaced.
        """
        base = location.base or location.model
        if Path(base).resolve() != self._model_folder:
            raise EngineError(
                f"the adapter in {location.folder} belongs to {base}, but this engine serves {self._model_folder}"
            )
        if not self._base_is_loaded:
            raise EngineError(
                f"the adapter in {location.folder} has no base here: full weights were loaded; restart the engine"
            )
        adapter = read_adapter(location)
        self._check_fit(adapter, location.folder)
        with torch.no_grad():
            for name in adapter.factors.keys() - self._base.keys():
                self._base[name] = self._weights[name].detach().clone()
            return adapter.apply_to(self._base)

    def _check_fit(self, adapter: Adapter, source: str) -> None:
        for name, (before, after) in adapter.factors.items():
            shape = [len(after), before.shape[1]]
            if name not in self._weights or list(self._weights[name].shape) != shape:
                own_shape = list(self._weights[name].shape) if name in self._weights else "none"
                raise EngineError(
                    f"the adapter in {source} does not fit this model: it adds {shape} to {name}, which has shape"
                    f" {own_shape}"
                )
        if self._base and adapter.factors.keys() != self._base.keys():
            raise EngineError(
                f"the adapter in {source} changes other weights than the versions before it: restart the engine"
            )
