"""Decoding from slots for models with vision.

In the tokens of a slot, the placeholder of an image's k-th token is replaced by a *key*, a number beyond all token ids
that stands for this token of this image. So prompts with other images differ in their tokens, for the prefix cache,
too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.core.errors import RequestError
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import ImageRef
from areal_actors.embedded.decoders import ModelDecoder
from areal_actors.generation.engine import PromptImages
from areal_actors.vision.embedding import VisionInputs
from areal_actors.vision.files import ImageFolder
from areal_actors.vision.positions import rope_offset, rope_positions

KEYS = 2**40
"""The smallest key."""
PLACES = 2**20
"""Keys of one image."""
CACHED_FEATURES = 256
"""Images whose features are kept until the weights change."""


class VisionDecoder(ModelDecoder):
    """See `SlotDecoder`."""

    def __init__(
        self, model: Any, slots: int, context: int, *, batch_invariant: bool = False, routes: RouteShape | None = None
    ) -> None:
        super().__init__(model, slots, context, batch_invariant=batch_invariant, routes=routes)
        self.tokens: NDArray[np.int64] = np.zeros((slots, context), dtype=np.int64)
        """Tokens and keys of all slots `[slots, context]`, set by the engine."""
        self._vision = VisionInputs(model.base_model)
        self._numbers: dict[str, int] = {}
        """Number of each image, by digest."""
        self._images: list[tuple[ImageRef, ImageFolder]] = []
        """By number."""
        self._features: OrderedDict[int, Tensor] = OrderedDict()

    def refresh(self) -> None:
        """Forget the features, which belong to earlier weights."""
        self._features.clear()

    def with_images(self, token_ids: NDArray[np.int64], shown: PromptImages) -> NDArray[np.int64]:
        """A prompt's ids with keys in place of placeholders.

        Raises:
            RequestError: an image is not within the prompt, or is its end.
            ImageLost: a file is missing or damaged.
        """
        shown.verify()
        keyed = token_ids.copy()
        for image in shown.images:
            end = image.start + image.tokens
            if (
                not 0 <= image.start < end < len(token_ids)
                or (token_ids[image.start : end] != self._vision.processor.placeholder).any()
            ):
                raise RequestError(
                    f"'images': tokens {image.start} to {end} of the prompt are not placeholders that text follows",
                    "images",
                )
            keyed[image.start : end] = KEYS + self._number(image, shown.folder) * PLACES + np.arange(image.tokens)
        return keyed

    def _number(self, image: ImageRef, folder: ImageFolder) -> int:
        if image.digest not in self._numbers:
            self._images.append((msgspec.structs.replace(image, start=0), folder))
            self._numbers[image.digest] = len(self._images) - 1
        return self._numbers[image.digest]

    def inputs(self, rows: Sequence[int], token_ids: NDArray[np.int64], positions: Tensor) -> dict[str, Tensor]:
        """See `ModelDecoder.inputs`."""
        keyed = token_ids >= KEYS
        if not (keyed.any() or (self.tokens[list(rows)] >= KEYS).any()):
            return super().inputs(rows, token_ids, positions)
        embedded = self._model.get_input_embeddings()(
            torch.from_numpy(np.where(keyed, 0, token_ids)).to(self._model.device)
        )
        for number in np.unique((token_ids[keyed] - KEYS) // PLACES):
            own = keyed & ((token_ids - KEYS) // PLACES == number)
            places = torch.from_numpy(token_ids[own] % PLACES).to(embedded.device)
            embedded[torch.from_numpy(own).to(embedded.device)] = self._features_of(int(number)).to(embedded.dtype)[
                places
            ]
        rotary = torch.stack(
            [self._rotary(row, own) for row, own in zip(rows, positions.cpu().numpy(), strict=True)], 1
        )
        return {"inputs_embeds": embedded, "position_ids": rotary.to(positions.device)}

    def _rotary(self, row: int, positions: NDArray[np.int64]) -> Tensor:
        """Rotary positions `[3, tokens]` of a row's tokens at these positions."""
        end = int(positions.max()) + 1
        images = [
            msgspec.structs.replace(self._images[number][0], start=start)
            for start, number in self._starts(self.tokens[row, :end])
        ]
        return torch.from_numpy(rope_positions(end, images, self._vision.processor.merge)[:, positions])

    def rotary_positions(self, positions: Tensor) -> Tensor:
        """See `ModelDecoder.rotary_positions`."""
        tokens = self.tokens[: len(positions)]
        if not (tokens >= KEYS).any():
            return positions
        merge = self._vision.processor.merge
        offsets = np.zeros(len(positions), dtype=np.int64)  # of rows that pad a batch, too
        for row, (own, end) in enumerate(zip(tokens, positions.tolist(), strict=False)):
            offsets[row] = sum(rope_offset(self._images[number][0], merge) for _, number in self._starts(own[:end]))
        return positions + torch.from_numpy(offsets).to(positions.device)

    def _starts(self, tokens: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Index of the first key and number of each image in a row."""
        starts = np.flatnonzero((tokens >= KEYS) & (tokens % PLACES == 0))
        return [(int(place), int((tokens[place] - KEYS) // PLACES)) for place in starts]

    def _features_of(self, number: int) -> Tensor:
        if number not in self._features:
            image, folder = self._images[number]
            self._features[number] = self._vision.features([image], folder)
            if len(self._features) > CACHED_FEATURES:
                self._features.popitem(last=False)
        return self._features[number]
