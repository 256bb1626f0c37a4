"""The base of a model in 4 or 8 bits: made from the model's own weights, and written for engines in their precision.

Trainer and engines have the same base: the trainer computes with the rounded matrices, and engines load a model folder
with these instead of the run's model. Versions are adapters of it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor, nn

from areal_actors.core.errors import SetupError
from areal_actors.training.models import WEIGHT_FILES
from areal_actors.training.quantized_base.packed_weights import can_pack, pack_weight
from areal_actors.training.quantized_base.quantized_linear import QuantizedLinear
from areal_actors.weights.source_tensors import checkpoint_tensors
from areal_actors.weights.transfer import atomic_folder, checksum, without_ties
from areal_actors.weights.write_tensors import write_tensors

ERROR_METRIC = "base_rounding_error"
"""Metric of a step: norm of the difference between packed and rounded matrices, as a share of the norm of the former.
"""
ADAPTED = ".base_layer"
"""Suffix that peft gives the name of a layer with an adapter."""
PREFIX = "base-"
CONFIGURATION = "config.json"
DIGITS = 16
"""Digits of the checksum in the name of a base's folder."""

logger = structlog.get_logger(__name__)


class RoundedBase:
    """The packed layers of one loaded model, which is changed in place."""

    def __init__(self, model: Any, model_folder: str, form: str, device: torch.device) -> None:
        """Pack all frozen linear layers but the head, one by one, on `device`.

        Raises:
            SetupError: the model has no such layer.
        """
        self._model_folder = Path(model_folder)
        self._layers: dict[str, QuantizedLinear] = {}
        self._written = ""
        error, total, left_out = 0.0, 0.0, []
        for name, layer in _frozen_linear_layers(model):
            if not can_pack(form, layer.weight):
                left_out.append(name)
                continue
            packed, rounded = pack_weight(form, layer.weight, device)
            exact = layer.weight.detach().to(device, torch.float32)
            error += float((exact - rounded).square().sum(dtype=torch.float64))
            total += float(exact.square().sum(dtype=torch.float64))
            self._layers[name] = QuantizedLinear(layer, packed)
            model.set_submodule(name, self._layers[name])
        if not self._layers:
            raise SetupError(
                f'trainer.lora.quantize_base: found "{form}", but {type(model).__name__} has no linear layer that'
                " can be packed; leave it out"
            )
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()  # the file with the matrices may be mapped by those that stay
        self.metrics = {ERROR_METRIC: math.sqrt(error / total) if total else 0.0}
        """Metrics of every step."""
        logger.info(
            "the frozen base is packed, and engines sample from the same rounded weights",
            form=form,
            layers=len(self._layers),
            left_as_they_are=left_out,
            **self.metrics,
        )

    def matrices(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Returns the rounded matrices by their names in the model, on the CPU."""
        return {
            f"{name.removesuffix(ADAPTED)}.weight": layer.packed.unpack().to(dtype).cpu()
            for name, layer in self._layers.items()
        }

    def write(self, model: Any, rest: Mapping[str, Tensor], beside: str, dtype: torch.dtype) -> str:
        """Write the base as a Hugging Face folder for engines; returns its path, which has the checksum of its weights.

        A restarted trainer finds the one that it wrote before.

        Args:
            model: the trained model.
            rest: its tensors that are not packed, without an adapter's, by their names in the model.
            beside: folder of a weight version, beside which it is written.
            dtype: of floating-point tensors in it.
        """
        if self._written and Path(self._written).is_dir():
            return self._written
        tensors = without_ties(checkpoint_tensors(model, {**rest, **self.matrices(dtype)}))
        folder = Path(beside).absolute().parent / f"{PREFIX}{checksum(tensors, dtype)[:DIGITS]}"
        for outdated in set(folder.parent.glob(f"{PREFIX}*")) - {folder}:  # of a killed trainer, or of other settings
            shutil.rmtree(outdated, ignore_errors=True)
        if not folder.is_dir():
            with atomic_folder(folder) as partial:
                write_tensors(tensors, partial, dtype=dtype)
                self._copy_other_files(partial)
        self._written = str(folder)
        return self._written

    def _copy_other_files(self, target: Path) -> None:
        weights = [pattern for pattern in WEIGHT_FILES if pattern != CONFIGURATION]
        for file in sorted(self._model_folder.iterdir()):
            if file.is_file() and not any(map(file.match, weights)):
                shutil.copyfile(file, target / file.name)


def _frozen_linear_layers(model: Any) -> list[tuple[str, nn.Linear]]:
    head = model.get_output_embeddings()
    return [
        (name, layer)
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and layer is not head and not layer.weight.requires_grad
    ]
