"""Inputs of a model with vision: embeddings of tokens, with the vision encoder's features at the places of images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from areal_actors.core.errors import SetupError
from areal_actors.core.values import ImageRef
from areal_actors.vision.files import ImageFolder
from areal_actors.vision.positions import rope_positions
from areal_actors.vision.processor import vision_of

CACHED_IMAGES = 64
"""Images whose patches are kept: a step reads each several times."""


class VisionInputs:
    """Computes the inputs of one base model, such as `Qwen2_5_VLModel`."""

    def __init__(self, base_model: Any) -> None:
        """The base model knows the folder that it was loaded from.

        Raises:
            SetupError: the folder has no supported preprocessing.
        """
        processor = vision_of(base_model.name_or_path)
        if processor is None:
            raise SetupError(
                f"{base_model.name_or_path} has no model with vision of a supported type; leave images out, or set"
                " another model"
            )
        self.processor = processor
        self._base_model = base_model
        self._patches: OrderedDict[str, Tensor] = OrderedDict()

    def positions(self, length: int, images: Sequence[ImageRef]) -> Tensor:
        """Positions of one sequence: int64 `[3, 1, length]`."""
        return torch.from_numpy(rope_positions(length, images, self.processor.merge))[:, None]

    def embed(self, token_ids: Tensor, images: Sequence[ImageRef], folder: ImageFolder) -> Tensor:
        """Embeddings `[1, tokens, hidden]` of one sequence `[1, tokens]`, images included, with gradient.

        Raises:
            ImageLost: a file is missing or damaged.
        """
        embedded: Tensor = self._base_model.get_input_embeddings()(token_ids)
        if not images:
            return embedded
        places = torch.cat([torch.arange(image.start, image.start + image.tokens) for image in images]).to(
            token_ids.device
        )
        inside = places < token_ids.shape[1]
        features = self.features(images, folder)[inside].to(embedded.dtype)
        return embedded.index_put((torch.zeros_like(places[inside]), places[inside]), features)

    def features(self, images: Sequence[ImageRef], folder: ImageFolder) -> Tensor:
        """Features of images, one row per token: `[tokens, hidden]`.

        Raises:
            ImageLost: a file is missing or damaged.
        """
        device = self._base_model.device
        patches = torch.cat([self._patches_of(image.digest, folder) for image in images]).to(device)
        grids = torch.tensor([image.grid for image in images], device=device)
        image_features = self._base_model.get_image_features(patches, grids, return_dict=True)
        return torch.cat(list(image_features.pooler_output))

    def _patches_of(self, digest: str, folder: ImageFolder) -> Tensor:
        if digest in self._patches:
            self._patches.move_to_end(digest)
        else:
            self._patches[digest] = torch.from_numpy(self.processor.patches(folder.load(digest)))
            if len(self._patches) > CACHED_IMAGES:
                self._patches.popitem(last=False)
        return self._patches[digest]
