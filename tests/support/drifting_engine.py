"""The embedded engine with a fault, for tests: the first one made for a model loads damaged weights from version 1
on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import torch

from areal_actors.core.values import WeightsLocation
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.transfer import read_weights, write_weights

MARK = "an engine of this model is faulty"
NOISE = 0.3
"""Size of the damage, as a fraction of each tensor's standard deviation."""


class DriftingEngine(TransformersEngine):
    """Samples with damaged weights, but reports the version and checksum of the sound ones."""

    def __init__(self, model_folder: str, settings: GenerationSettings) -> None:
        super().__init__(model_folder, settings)
        mark = Path(model_folder) / MARK
        try:
            mark.touch(exist_ok=False)
            self.faulty = True
        except FileExistsError:
            self.faulty = False

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        if not self.faulty or weight_version == 0:
            await super().load_weights(location, weight_version)
            return
        generator = torch.Generator().manual_seed(weight_version)
        with tempfile.TemporaryDirectory() as folder:
            damaged = {
                name: (
                    tensor + NOISE * tensor.std() * torch.randn(tensor.shape, generator=generator)
                    if tensor.numel() > 1
                    else tensor
                )
                for name, tensor in read_weights(location).items()
            }
            other = write_weights(damaged, f"{folder}/damaged", location.model)
            await super().load_weights(
                msgspec.structs.replace(location, folder=other.folder, checksum=other.checksum), weight_version
            )
