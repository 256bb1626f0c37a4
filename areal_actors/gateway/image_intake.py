"""Intake of images: a request's images become files beside the log, and references.

The files have the size at which the model sees the images.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from threading import Lock
from typing import Any
from urllib.parse import unquote_to_bytes

import aiohttp
import msgspec
import xxhash
from cachetools import LRUCache

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.model_config import VISION_TYPES
from areal_actors.gateway.conversations.prompt_images import images_in
from areal_actors.gateway.settings import ImageSettings
from areal_actors.messages import ModelRequest
from areal_actors.vision.files import ImageFolder
from areal_actors.vision.processor import ImageRefused, VisionProcessor

MIB = 2**20
WEB = ("http://", "https://")
SHOWN_CHARACTERS = 60
KNOWN = 4096
"""Images that are recognised when they are sent again."""


class ImageIntake:
    """Stores the images of requests."""

    def __init__(self, folder: ImageFolder, settings: ImageSettings) -> None:
        self._folder, self._settings = folder, settings
        self._known: LRUCache[bytes, dict[str, Any]] = LRUCache(KNOWN)
        """References by the digest of what was sent."""
        self._lock = Lock()

    async def store(self, request: ModelRequest, processor: VisionProcessor | None) -> ModelRequest:
        """The request with each image by reference in place of its URL.

        A reference is `{"type": "image", "digest", "grid", "tokens"}`.

        Raises:
            RequestError: the model has no vision, or an image is refused; the field names the first one.
            EngineError: a file cannot be written.
        """
        count, limit = len(list(images_in(request.messages))), self._settings.max_per_call
        if count > limit:
            fault = f"'messages': {count} images, and gateway.images.max_per_call is {limit}"
            raise RequestError(f"{fault}; send fewer, or raise it in the recipe", "messages")
        messages = []
        for index, message in enumerate(request.messages):
            content = message.get("content")
            if isinstance(content, list):
                parts = [
                    await self._part(part, processor, f"messages[{index}].content[{place}]")
                    for place, part in enumerate(content)
                ]
                message = {**message, "content": parts}  # noqa: PLW2901 - the request is not changed
            messages.append(message)
        return msgspec.structs.replace(request, messages=tuple(messages))

    async def _part(self, part: Mapping[str, Any], processor: VisionProcessor | None, field: str) -> Mapping[str, Any]:
        if part["type"] != "image":
            return part
        if processor is None:
            kinds = " and ".join(VISION_TYPES)
            raise RequestError(
                f"'{field}' is an image, but the model behind this gateway reads text only; send text, or set `model`"
                f" to one with vision of type {kinds} (docs/vision.md)",
                field,
            )
        try:
            content = await self._fetch_image(part["url"]) if part["url"].lower().startswith(WEB) else part["url"]
            return await asyncio.to_thread(self._store_image, content, processor)
        except ImageRefused as error:
            raise RequestError(f"'{field}': the image {error}", field) from error
        except OSError as error:
            raise EngineError(f"the image of '{field}' cannot be written to {self._folder.path}: {error}") from error

    def _store_image(self, content: bytes | str, processor: VisionProcessor) -> dict[str, Any]:
        """The reference to an image, given as a file or as a `data:` URL.

        Clients send those of earlier turns again and again.
        """
        name = xxhash.xxh3_128_digest(content.encode(errors="surrogatepass") if isinstance(content, str) else content)
        with self._lock:
            stored = self._known.get(name)
        if stored is not None and self._folder.holds(stored["digest"]):
            return stored
        png, grid = processor.as_seen(
            self._decode_data_url(content) if isinstance(content, str) else content, self._settings.max_megapixels
        )
        part = {"type": "image", "digest": self._folder.store(png), "grid": grid, "tokens": processor.tokens(grid)}
        with self._lock:
            self._known[name] = part
        return part

    def _decode_data_url(self, url: str) -> bytes:
        """The file in a `data:` URL.

        Raises:
            ImageRefused: the URL is of another kind or holds no data, or the file is too large.
        """
        limit = self._settings.max_mb * MIB
        head, comma, body = url.partition(",")
        if not head.startswith("data:") or not comma:
            raise ImageRefused(
                f"is given as {url[:SHOWN_CHARACTERS]!r}; send a data: URL, such as data:image/png;base64,..."
            )
        encoded = head.endswith(";base64")
        if len(body) > (limit * 4 // 3 + 4 if encoded else limit * 3):
            raise self._too_large()
        try:
            content = base64.b64decode(body, validate=True) if encoded else unquote_to_bytes(body)
        except (binascii.Error, ValueError) as error:
            raise ImageRefused(f"is not valid base64 ({error}); encode the whole file") from error
        if len(content) > limit:
            raise self._too_large()
        return content

    async def _fetch_image(self, url: str) -> bytes:
        """The file at an address; raises ImageRefused if it may not or cannot be loaded, or is too large."""
        settings = self._settings
        if settings.urls == "refuse":
            raise ImageRefused(
                "is given by its URL, and this gateway loads none; send a data: URL, or set gateway.images.urls='fetch'"
            )
        content = bytearray()
        try:
            timeout = aiohttp.ClientTimeout(total=settings.fetch_seconds)
            async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as http, http.get(url) as answer:
                async for chunk in answer.content.iter_chunked(MIB):
                    content += chunk
                    if len(content) > settings.max_mb * MIB:
                        raise self._too_large()
        except TimeoutError:
            late = f"did not arrive within gateway.images.fetch_seconds = {settings.fetch_seconds:g}"
            raise ImageRefused(f"at {url[:SHOWN_CHARACTERS]} {late}; send a data: URL") from None
        except (aiohttp.ClientError, ValueError) as error:
            if isinstance(error, ImageRefused):
                raise
            raise ImageRefused(f"at {url[:SHOWN_CHARACTERS]} cannot be loaded ({error}); send a data: URL") from error
        return bytes(content)

    def _too_large(self) -> ImageRefused:
        return ImageRefused(
            f"is larger than gateway.images.max_mb = {self._settings.max_mb} MiB; send a smaller one, or raise it in"
            " the recipe"
        )
