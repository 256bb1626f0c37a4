"""Image processor of Qwen2.5-VL, in PIL and NumPy: the size at which the model sees an image, and its patches.

The same numbers as transformers' `Qwen2VLImageProcessor` gives, without loading torch. An image is stored at the size
at which the model sees it, so that every processor of the family, whatever library resizes its images, takes the same
pixels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from areal_actors.core.durable_files import read_json
from areal_actors.core.model_config import has_vision
from areal_actors.core.values import Value

MAX_ASPECT_RATIO = 200
"""Longest by shortest side; the processor refuses images beyond it."""
MEGA = 1_000_000
PNG_COMPRESSION = 3
"""zlib level: half the time of the default, files a few percent larger."""
OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)


class ImageRefused(ValueError):
    """Raised when an image cannot be shown to the model; the message completes `the image`."""


class VisionProcessor(Value):
    """Preprocessing of a model's images, from its Hugging Face folder."""

    placeholder: int
    """Token id that stands for a merged patch."""
    min_pixels: int
    """Smaller images are enlarged to this number of pixels."""
    max_pixels: int
    """Larger images are reduced to this number of pixels."""
    patch: int
    """Side of a patch, in pixels."""
    merge: int
    """Patches per token in height and in width."""
    temporal_patch: int
    """Frames per patch; an image is repeated."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def unit(self) -> int:
        """Side of the square of pixels that becomes a token; sides of images are multiples of it."""
        return self.patch * self.merge

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height at which the model sees an image.

        Raises:
            ImageRefused: one side is too long for the other.
        """
        if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
            raise ImageRefused(
                f"is {width} by {height} pixels; one side may be at most {MAX_ASPECT_RATIO} times as long as the other"
            )
        unit = self.unit
        # round() is that of the reference, half to even
        seen_width, seen_height = round(width / unit) * unit, round(height / unit) * unit
        if seen_width * seen_height > self.max_pixels:
            factor = math.sqrt(width * height / self.max_pixels)
            seen_width, seen_height = (max(unit, math.floor(side / factor / unit) * unit) for side in (width, height))
        elif seen_width * seen_height < self.min_pixels:
            factor = math.sqrt(self.min_pixels / (width * height))
            seen_width, seen_height = (math.ceil(side * factor / unit) * unit for side in (width, height))
        return seen_width, seen_height

    def as_seen(self, content: bytes, max_megapixels: int) -> tuple[bytes, tuple[int, int, int]]:
        """A PNG file of an image as the model sees it, and its patches (`ImageRef.grid`).

        Of several frames the first is taken.

        Raises:
            ImageRefused: it is damaged, of another format, or too large.
        """
        try:
            opened = Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "GIF", "WEBP"))
            if opened.width * opened.height > max_megapixels * MEGA:
                size = f"{opened.width} by {opened.height} pixels"
                raise ImageRefused(
                    f"is {size}, and gateway.images.max_megapixels is {max_megapixels}; send a smaller one"
                )
            image = ImageOps.exif_transpose(opened).convert("RGB")
        except ImageRefused:
            raise
        except UnidentifiedImageError:
            raise ImageRefused("is no PNG, JPEG, GIF or WebP file; send one of these") from None
        except Exception as error:  # the decoders raise anything at a damaged file
            raise ImageRefused(f"cannot be decoded ({error}); send it whole") from error
        width, height = self.size(image.width, image.height)
        if self.size(width, height) != (width, height):
            raise ImageRefused(
                f"is {image.width} by {image.height} pixels, which is too long and narrow for this model; send another"
                " part of it"
            )
        file = io.BytesIO()
        image.resize((width, height), Image.Resampling.BICUBIC).save(file, "PNG", compress_level=PNG_COMPRESSION)
        return file.getvalue(), (1, height // self.patch, width // self.patch)

    def tokens(self, grid: Sequence[int]) -> int:
        """Number of tokens of an image with this grid of patches."""
        return math.prod(grid) // self.merge**2

    def patches(self, png: bytes) -> NDArray[np.float32]:
        """Patches of a stored image, `pixel_values` of transformers: `[patches, 3 * temporal_patch * patch * patch]`.

        Patches that become a token are neighbours.
        """
        pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.float32).transpose(
            2, 0, 1
        ) * np.float32(1 / 255)
        mean, std = (np.asarray(column, dtype=np.float32)[:, None, None] for column in (self.mean, self.std))
        scaled = (pixels - mean) / std
        _, height, width = scaled.shape
        blocks = (height // self.unit, self.merge, self.patch, width // self.unit, self.merge, self.patch)
        arranged = scaled.reshape(3, *blocks).transpose(1, 4, 2, 5, 0, 3, 6)
        frames = np.broadcast_to(
            arranged[:, :, :, :, :, None], (*arranged.shape[:5], self.temporal_patch, self.patch, self.patch)
        )
        return frames.reshape(height * width // self.patch**2, -1)


def vision_of(folder: str | Path) -> VisionProcessor | None:
    """Preprocessing of the model in this Hugging Face folder; None without vision of a supported type."""
    if not has_vision(folder):
        return None
    place = Path(folder)
    config = read_json(place / "config.json")
    stated = (
        read_json(place / "preprocessor_config.json")
        or read_json(place / "processor_config.json").get("image_processor")
        or {}
    )
    size = stated.get("size") or {}
    vision = config.get("vision_config") or {}
    patch = stated.get("patch_size") or vision.get("patch_size") or 14
    return VisionProcessor(
        placeholder=config["image_token_id"],
        min_pixels=stated.get("min_pixels") or size.get("shortest_edge") or 56 * 56,
        max_pixels=stated.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280,
        patch=patch,
        merge=stated.get("merge_size") or vision.get("spatial_merge_size") or 2,
        temporal_patch=stated.get("temporal_patch_size") or vision.get("temporal_patch_size") or 2,
        mean=tuple(stated.get("image_mean") or OPENAI_MEAN),
        std=tuple(stated.get("image_std") or OPENAI_STD),
    )
