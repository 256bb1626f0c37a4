"""Multimodal rotary positions (Qwen2-VL, https://arxiv.org/abs/2409.12191, section 2.1).

A text token has one position in all three coordinates. The tokens of an image have the position of the first of them in
time, and count rows and columns from there; the text after it goes on after the largest of its coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from areal_actors.core.values import ImageRef


def rope_positions(length: int, images: Iterable[ImageRef], merge: int) -> NDArray[np.int64]:
    """Positions in time, height and width of a sequence's tokens: `[3, length]`.

    Args:
        length: number of tokens.
        images: in order; one may extend beyond the end.
        merge: patches per token in height and in width.
    """
    positions = np.empty((3, length), dtype=np.int64)
    end = position = 0
    for image in images:
        gap = image.start - end
        positions[:, end : image.start] = np.arange(position, position + gap)
        position += gap
        end = min(image.start + image.tokens, length)
        coordinates = np.indices(_merge_grid(image.grid, merge)).reshape(3, -1)
        positions[:, image.start : end] = position + coordinates[:, : end - image.start]
        position += max(_merge_grid(image.grid, merge))
    positions[:, end:] = np.arange(position, position + length - end)
    return positions


def rope_offset(image: ImageRef, merge: int) -> int:
    """Difference of position and index of the tokens after an image, which is its own contribution to it."""
    return max(_merge_grid(image.grid, merge)) - image.tokens


def _merge_grid(grid: Sequence[int], merge: int) -> tuple[int, int, int]:
    return grid[0], grid[1] // merge, grid[2] // merge
