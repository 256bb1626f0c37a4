"""LoRA: the model's weights are frozen, and low-rank updates of its linear layers are trained (arXiv:2106.09685).

`peft` adds the factors to the model; weights are published as an adapter in peft's format, see `adapters`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import WeightsLocation
from areal_actors.training.quantized_base.rounded_base import RoundedBase
from areal_actors.training.settings import LoraSettings
from areal_actors.weights.adapters import Adapter, AdapterConfig, pair_factors, save_adapter, write_adapter
from areal_actors.weights.weight_files import ADAPTER_PREFIX

if TYPE_CHECKING:
    import peft
else:
    peft = LazyModule("peft")

NAME = "default"
"""peft's name for the only adapter of a model."""
FOLDER = "adapter"
"""Folder of the unmerged adapter within a saved model."""
CPU = torch.device("cpu")
EMBEDDINGS = frozenset({"lm_head", "embed_tokens"})


class Lora:
    """The adapter of one loaded model, which is changed in place."""

    def __init__(
        self,
        model: Any,
        model_folder: str,
        settings: LoraSettings,
        seed: int,
        device: torch.device = CPU,
        published_dtype: torch.dtype = torch.float32,
    ) -> None:
        """Add factors: A random with this seed, B all 0, so that the model is initially unchanged.

        Args:
            model: changed in place.
            model_folder: its Hugging Face folder.
            settings: the recipe's `[trainer.lora]`.
            seed: of A.
            device: holds the base, if it is rounded to fewer bits; the caller moves the rest of the model to it.
            published_dtype: dtype in which a rounded base is published.

        Raises:
            SetupError: the model has no layer of a name in `targets`, or none whose matrix can be packed.
        """
        if refused := EMBEDDINGS & set(settings.targets):
            raise SetupError(
                f"trainer.lora.targets: {', '.join(sorted(refused))} is not supported; name layers of the blocks, or"
                " none for all"
            )
        config = peft.LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            target_modules=list(settings.targets) or "all-linear",
            use_rslora=settings.rank_stabilized,
            task_type="CAUSAL_LM",
            base_model_name_or_path=model_folder,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                self._wrapped: peft.PeftModel = peft.get_peft_model(model, config)
            except ValueError as error:
                raise SetupError(f"trainer.lora.targets = {list(settings.targets)}: {error}") from error
        form = settings.quantize_base
        self._base = RoundedBase(model, model_folder, form, device) if form != "off" else None
        self._published_dtype = published_dtype
        self._model_folder = model_folder
        fields: dict[str, Any] = config.to_dict()  # type: ignore[no-untyped-call]
        plain = {name: sorted(value) if isinstance(value, set) else value for name, value in fields.items()}
        self._manifest = json.dumps(plain | {"inference_mode": True}, indent=2, sort_keys=True)
        self._scale = AdapterConfig(
            r=settings.rank, lora_alpha=settings.alpha, use_rslora=settings.rank_stabilized
        ).scale

    def off(self) -> AbstractContextManager[None]:
        """Disables the adapter within the context."""
        context: AbstractContextManager[None] = self._wrapped.disable_adapter()
        return context

    @staticmethod
    def is_adapter_tensor(name: str) -> bool:
        """True if the model's tensor of this name belongs to the adapter."""
        return ".lora_A." in name or ".lora_B." in name

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of every step: the rounding of the base, if it is rounded."""
        return {} if self._base is None else self._base.metrics

    def publish(self, state: Mapping[str, Tensor], folder: str) -> WeightsLocation:
        """Write the adapter of this state into a new folder for inference workers, and once a base that is rounded.

        Other tensors in `state` are ignored.
        """
        base = ""
        if self._base is not None:
            model = self._wrapped.get_base_model()
            base = self._base.write(model, self._base_tensors(model.state_dict()), folder, self._published_dtype)
        return write_adapter(self.factors(state), self._manifest, folder, self._model_folder, base)

    def save(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """Write the adapter of this state into a subfolder of the merged model in `folder`."""
        (folder / FOLDER).mkdir(exist_ok=True)
        save_adapter(self.factors(state), self._manifest, folder / FOLDER)

    def merge(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Merges base and adapter of this state; names are those of the model without an adapter."""
        base = self._base_tensors(state) | (self._base.matrices() if self._base is not None else {})
        adapter = Adapter(self._scale, pair_factors(self.factors(state), "the trainer"))
        return base | adapter.apply_to(base)

    def _base_tensors(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the state without the adapter's, by the names of the model without an adapter."""
        return {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in state.items()
            if not self.is_adapter_tensor(name)
        }

    def factors(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The adapter's tensors by the names that peft uses in files."""
        return {
            ADAPTER_PREFIX + name.replace(f".{NAME}.", "."): tensor.detach()
            for name, tensor in state.items()
            if self.is_adapter_tensor(name)
        }
