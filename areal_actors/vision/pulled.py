"""Images on another host.

Its inference workers pull them by digest from the run's HTTP server, and its gateways send them there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import xxhash

from areal_actors.core.errors import EngineError, ImageLost
from areal_actors.core.objects import RemoteObjects
from areal_actors.core.values import ImageRef
from areal_actors.vision.files import ImageFolder


class SentImages(ImageFolder):
    """The images of a gateway of another host: each is in the run's folder, too, before it is named in a message."""

    def __init__(self, path: Path, objects: RemoteObjects) -> None:
        super().__init__(path)
        self._objects = objects

    def store(self, png: bytes) -> str:
        """Send an image unless it is here already; returns its digest.

        Raises OSError if it cannot be sent or written.
        """
        digest = xxhash.xxh3_128_hexdigest(png)
        if not self.holds(digest):
            self._objects.write_image(digest, png)
        return super().store(png)


class ImagePuller:
    """Brings the images of prompts to this host before they are looked at."""

    def __init__(self, objects: RemoteObjects) -> None:
        self._objects = objects
        self._pulling = asyncio.Lock()
        """Prompts of a group arrive together, with the same images."""

    async def __call__(self, images: Sequence[ImageRef], folder: ImageFolder) -> None:
        """Pull those images that are not in the folder yet.

        Raises:
            ImageLost: the run does not have an image any more.
            EngineError: the run's files cannot be reached.
        """
        async with self._pulling:
            await asyncio.gather(
                *(asyncio.to_thread(self._pull, digest, folder) for digest in {image.digest for image in images})
            )

    def _pull(self, digest: str, folder: ImageFolder) -> None:
        if folder.holds(digest):
            return
        try:
            actual_digest = folder.store(self._objects.read_image(digest))
        except FileNotFoundError as error:
            raise ImageLost(
                f"the image {digest} is no longer in the run's folder ({error}); send the image again"
            ) from error
        except OSError as error:
            raise EngineError(f"the image {digest} cannot be pulled from the run's host: {error}") from error
        if actual_digest != digest:
            raise ImageLost(
                f"the image {digest} is damaged in the run's folder: its digest is {actual_digest}; send the image"
                " again"
            )
