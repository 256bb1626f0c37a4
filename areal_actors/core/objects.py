"""Files of a run on another host, over HTTP.

They are folders that are pulled whole, images, and bodies of messages. All calls block. Errors are OSErrors:
FileNotFoundError if something is not there any more, PermissionError if the token is refused.
"""

from __future__ import annotations

import shutil
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import xxhash

from areal_actors.core.values import Value
from areal_bus.tls import client_context

T = TypeVar("T")

FOLDERS, BLOBS, IMAGES, SNAPSHOTS = "/folders/", "/blobs/", "/images/", "/snapshots/"
"""Paths of the HTTP server."""
CODE, MODEL, WEIGHTS = "code", "model", "weights-"
"""Names of folders; that of weights is followed by their version."""
READ_SECONDS = 30.0
RETRY_FOR_SECONDS = 60.0
"""Time in which a broken connection is tried again."""
PAUSE_SECONDS = 0.5
AT_ONCE = 8
"""Files of a folder that are pulled at once."""
PIECE_BYTES = 1 << 20


class StoredFile(Value):
    """A file of a folder."""

    size: int
    digest: str = ""
    """XXH3-128 of its content; empty if the folder has a checksum of its own."""


class FileAccess(Value):
    """Permissions of a worker's token for the files of the run."""

    reads: frozenset[str] = frozenset()
    """Subjects of messages whose bodies it may read."""
    writes: frozenset[str] = frozenset()
    """Subjects of messages whose bodies it may add; none is replaced."""
    removes: frozenset[str] = frozenset()
    """Subjects of messages whose bodies it may remove: of requests and replies, which the log does not have."""
    folders: frozenset[str] = frozenset()
    """Folders that it may pull; that of weights without a version."""
    reads_images: bool = False
    writes_images: bool = False
    fold: str = ""
    """Fold whose snapshots it may read and write; empty: none."""

    def may_pull(self, folder: str) -> bool:
        """True if it may pull a folder."""
        return (WEIGHTS if folder.startswith(WEIGHTS) else folder) in self.folders


class RemoteObjects:
    """The files of a run, as its HTTP server gives them."""

    def __init__(self, url: str, token: str, *, retry_for_seconds: float = RETRY_FOR_SECONDS) -> None:
        """`url`: `http://host:port`, or `https://host:port#FINGERPRINT` of a server that encrypts."""
        self.url, self._token, self._retry_for_seconds = url.partition("#")[0], token, retry_for_seconds
        self._context = client_context(url)

    def __str__(self) -> str:
        return self.url

    def pull(self, folder: str, into: Path, *, without: tuple[str, ...] = ()) -> None:
        """Copy the files of a folder, verified by size and digest, but not those whose names end `without`."""
        listed = msgspec.json.decode(self._call("GET", FOLDERS + quote(folder)), type=dict[str, StoredFile])
        files = {name: stored for name, stored in listed.items() if not name.endswith(without)}
        into.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for _ in threads.map(lambda name: self._pull_file(folder, name, files[name], into / name), files):
                pass

    def write(self, name: str, body: bytes) -> None:
        """Store the body of a message."""
        self._call("PUT", BLOBS + quote(name), body)

    def read(self, name: str) -> bytes:
        """Returns the body of a message."""
        return self._call("GET", BLOBS + quote(name))

    def remove(self, name: str) -> None:
        """Remove the body of a request or a reply, which may be missing."""
        self._call("DELETE", BLOBS + quote(name))

    def read_image(self, digest: str) -> bytes:
        """Returns an image of a prompt."""
        return self._call("GET", IMAGES + quote(digest))

    def write_image(self, digest: str, png: bytes) -> None:
        """Store an image of a prompt."""
        self._call("PUT", IMAGES + quote(digest), png)

    def write_snapshot(self, fold: str, snapshot: bytes) -> None:
        """Store a snapshot of this worker's fold."""
        self._call("PUT", SNAPSHOTS + quote(fold), snapshot)

    def snapshots(self, fold: str) -> list[int]:
        """Returns the sequences of the snapshots of this worker's fold, oldest first."""
        return msgspec.json.decode(self._call("GET", SNAPSHOTS + quote(fold)), type=list[int])

    def read_snapshot(self, fold: str, sequence: int) -> bytes:
        """Returns a snapshot of this worker's fold."""
        return self._call("GET", f"{SNAPSHOTS}{quote(fold)}/{sequence}")

    def _pull_file(self, folder: str, name: str, stored: StoredFile, place: Path) -> None:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise OSError(f"{self.url} offers a file outside of its folder: {name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        self._retry(lambda: self._copy(f"{FOLDERS}{quote(folder)}/{quote(name)}", stored, place))

    def _copy(self, path: str, stored: StoredFile, place: Path) -> None:
        with place.open("wb") as file:
            self._exchange("GET", path, b"", lambda answer: shutil.copyfileobj(answer, file, PIECE_BYTES))
        if (size := place.stat().st_size) != stored.size:
            raise ConnectionError(f"{self.url}{path} has {stored.size:,} bytes, {size:,} arrived")
        if stored.digest and (digest := digest_of(place)) != stored.digest:
            raise ConnectionError(f"{self.url}{path} has digest {stored.digest}, {digest} arrived")

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        return self._retry(lambda: self._exchange(method, path, body, HTTPResponse.read))

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Returns what an attempt does; one whose connection breaks is repeated."""
        until = time.monotonic() + self._retry_for_seconds
        while True:
            try:
                return attempt()
            except (ConnectionError, TimeoutError):
                if time.monotonic() >= until:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _exchange(self, method: str, path: str, body: bytes, receive: Callable[[HTTPResponse], T]) -> T:
        parts = urlsplit(self.url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=READ_SECONDS)
        if self._context is not None:
            connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=READ_SECONDS, context=self._context)
        try:
            connection.request(method, path, body=body or None, headers={"Authorization": f"Bearer {self._token}"})
            answer = connection.getresponse()
            if answer.status == 404:
                raise FileNotFoundError(f"{self.url}{path} is not there")
            if answer.status == 401:
                raise PermissionError(
                    f"{self.url} refuses the token of this worker, which is no longer part of the run"
                )
            if answer.status == 403:
                raise PermissionError(f"{self.url}{path}: {answer.read(1000).decode(errors='replace')}")
            if answer.status == 503:
                raise ConnectionError(f"{self.url}{path}: {answer.read(1000).decode(errors='replace')}")
            if answer.status >= 300:
                raise OSError(f"{self.url}{path}: status {answer.status}: {answer.read(1000).decode(errors='replace')}")
            return receive(answer)
        except ssl.SSLCertVerificationError as error:
            raise PermissionError(f"{self.url} is not the server of the run: {error.args[-1]}") from error
        except (HTTPException, ssl.SSLError) as error:
            raise ConnectionError(f"{self.url}{path}: {type(error).__name__} {error}") from error
        finally:
            connection.close()


def digest_of(path: Path) -> str:
    """Returns the XXH3-128 of a file."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
