"""HTTP server of a run's files for remote workers.

It has code, model, weights, images, snapshots, and large bodies of messages. Its process (`object_process.py`) does
nothing else. It listens beyond this host, so connections and their idle time have limits (`core/http_connections.py`);
the kernel sends the files.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import msgspec
from aiohttp import web

from areal_actors.core.durable_files import explain_os_error
from areal_actors.core.errors import SetupError
from areal_actors.core.http_connections import HttpListener, answer_in_place, most_connections
from areal_actors.core.objects import (
    BLOBS,
    CODE,
    FOLDERS,
    IMAGES,
    MODEL,
    SNAPSHOTS,
    WEIGHTS,
    FileAccess,
    StoredFile,
    digest_of,
)
from areal_actors.core.snapshots import Snapshot, SnapshotStore
from areal_actors.vision.files import ImageFolder
from areal_actors.weights.folders import SHARE, possible_folders, version_folder
from areal_bus.claims import BlobFolder, is_name_of, subject_of
from areal_bus.descriptors import is_out_of_descriptors
from areal_bus.tls import Certificate

MAX_BODY_BYTES = 1 << 28
MODEL_SECONDS = 25.0
"""Time for which a request waits for the model, which the trainer may still be making; the client asks again."""
VERSION = re.compile(r"[0-9]{1,18}")
HEAD_SECONDS = 10.0
"""Time limit for a handshake, and for the head of a request."""
DESCRIPTORS_EACH = 2
"""Descriptors of a connection: its own, and that of the file that it receives."""
POLL_SECONDS = 0.2
START_SECONDS = 30.0
"""Time limit for the server to listen."""
ACCESS = web.RequestKey("access", FileAccess)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ObjectServer:
    """Serves files to those who have a token, from `start` until the process ends."""

    def __init__(
        self, run: str, run_folder: Path, code: Mapping[str, Path], weights_folder: str = "", *, share: str = ""
    ) -> None:
        """`code`: files of the folder `code`, by their names in it.

        `weights_folder`: `trainer.weights_folder`; `share`: see `share`.
        """
        self.run_folder = run_folder
        self.code = dict(code)
        self.model: Path | None = None
        """The model's folder, once weights were published."""
        self.access: dict[str, FileAccess] = {}
        """Permissions of each token."""
        self.share = share or secrets.token_hex(8)
        """Identity, by which a host recognises that it has the weights' folder itself."""
        self.port = 0
        self._weights = possible_folders(run, run_folder, weights_folder)
        self._images = ImageFolder.of_run(run_folder)
        self._blobs = BlobFolder(run_folder / "blobs")
        self._snapshots = SnapshotStore(run_folder / "snapshots")
        self._digests: dict[tuple[Path, int, int], str] = {}

    def start(self, host: str, port: int, certificate: Certificate | None = None) -> None:
        """Listen on this address, encrypted with a certificate; 0: a free port.

        Raises:
            SetupError: the address cannot be used.
        """
        listening: Future[int] = Future()
        threading.Thread(
            target=lambda: asyncio.run(self._serve(host, port, certificate, listening)), name="objects", daemon=True
        ).start()
        try:
            self.port = listening.result(START_SECONDS)
        except OSError as error:  # also TimeoutError
            cause = error.strerror or f"no answer within {START_SECONDS:g} s"
            raise SetupError(
                f"bus.host, bus.objects_port: cannot listen on {host}:{port} ({cause}); correct them"
            ) from error

    def weights_published(self, model_folder: Path) -> None:
        """Note the model's folder, and that the weights' folder may be shared with other processes of this host."""
        self.model = model_folder
        for root in self._weights:
            if root.is_dir() and not (root / SHARE).exists():
                (root / SHARE).write_text(self.share)

    async def _serve(self, host: str, port: int, certificate: Certificate | None, listening: Future[int]) -> None:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._check_token])
        app.router.add_get(FOLDERS + "{folder}", self._list)
        app.router.add_get(FOLDERS + "{folder}/{name:.+}", self._file)
        app.router.add_get(IMAGES + "{digest:[0-9a-f]{32}}", self._image)
        app.router.add_put(IMAGES + "{digest:[0-9a-f]{32}}", self._put_image)
        for method, handler in (("PUT", self._put_blob), ("GET", self._get_blob), ("DELETE", self._delete_blob)):
            app.router.add_route(method, BLOBS + "{name}", handler)
        app.router.add_get(SNAPSHOTS + "{fold}", self._list_snapshots)
        app.router.add_get(SNAPSHOTS + "{fold}/{sequence:[0-9]{1,18}}", self._get_snapshot)
        app.router.add_put(SNAPSHOTS + "{fold}", self._put_snapshot)
        runner = web.AppRunner(app)
        await runner.setup()
        assert runner.server is not None
        listener = HttpListener(runner.server, HEAD_SECONDS, most_connections(DESCRIPTORS_EACH))
        try:
            await listener.start(host, port, certificate.context() if certificate is not None else None)
        except OSError as error:
            listening.set_exception(error)
            return
        listening.set_result(listener.port)
        await asyncio.Event().wait()

    @web.middleware
    async def _check_token(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode(errors="surrogateescape")
        access = next(
            (access for token, access in tuple(self.access.items()) if hmac.compare_digest(given, token.encode())), None
        )
        if access is None:
            raise web.HTTPUnauthorized
        request[ACCESS] = access
        try:
            return await answer_in_place(request, handler)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise web.HTTPServiceUnavailable(text=explain_os_error(error)) from error
            raise

    async def _list(self, request: web.Request) -> web.Response:
        folder = _folder(request)
        if folder == MODEL:
            with suppress(TimeoutError):
                async with asyncio.timeout(MODEL_SECONDS):
                    while self.model is None:  # noqa: ASYNC110 - it is set by another thread
                        await asyncio.sleep(POLL_SECONDS)
            if self.model is None:
                raise web.HTTPServiceUnavailable(text="there is no model yet")
        files = await asyncio.to_thread(self._describe_files, folder)
        return web.Response(body=msgspec.json.encode(files), content_type="application/json")

    def _describe_files(self, folder: str) -> dict[str, StoredFile]:
        has_checksum = folder.startswith(WEIGHTS)
        return {
            name: StoredFile(size=path.stat().st_size, digest="" if has_checksum else self._digest(path))
            for name, path in self._files(folder).items()
        }

    def _digest(self, path: Path) -> str:
        status = path.stat()
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in self._digests:
            self._digests[key] = digest_of(path)
        return self._digests[key]

    async def _file(self, request: web.Request) -> web.StreamResponse:
        files = await asyncio.to_thread(self._files, _folder(request))
        path = files.get(request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound
        return await _send(path)

    def _files(self, folder: str) -> dict[str, Path]:
        """Returns the files of a folder, by their names in it."""
        if folder == CODE:
            return self.code
        place = self.model if folder == MODEL else None
        if version := VERSION.fullmatch(folder.removeprefix(WEIGHTS)) if folder.startswith(WEIGHTS) else None:
            place = next(
                (
                    version_path
                    for root in self._weights
                    if (version_path := version_folder(root, int(version[0]))).is_dir()
                ),
                None,
            )
        files = {} if place is None else {path.name: path for path in place.iterdir() if path.is_file()}
        if not files:
            raise web.HTTPNotFound
        return files

    async def _image(self, request: web.Request) -> web.StreamResponse:
        _check(request[ACCESS].reads_images, "does not read images")
        path = self._images.file(request.match_info["digest"])
        if not await asyncio.to_thread(path.is_file):
            raise web.HTTPNotFound
        return await _send(path)

    async def _put_image(self, request: web.Request) -> web.Response:
        _check(request[ACCESS].writes_images, "does not write images")
        if (digest := await asyncio.to_thread(self._images.store, await request.read())) != request.match_info[
            "digest"
        ]:
            raise web.HTTPBadRequest(text=f"the image has the digest {digest}")
        return web.Response()

    def _fold(self, request: web.Request) -> str:
        """Returns the fold of a request, which must be that of its token."""
        fold = request.match_info["fold"]
        _check(fold == request[ACCESS].fold, f"does not serve {fold}")
        return fold

    async def _list_snapshots(self, request: web.Request) -> web.Response:
        sequences = await asyncio.to_thread(self._snapshots.sequences, self._fold(request))
        return web.Response(body=msgspec.json.encode(sequences), content_type="application/json")

    async def _get_snapshot(self, request: web.Request) -> web.StreamResponse:
        path = self._snapshots.path(self._fold(request), int(request.match_info["sequence"]))
        if not await asyncio.to_thread(path.is_file):
            raise web.HTTPNotFound
        return await _send(path)

    async def _put_snapshot(self, request: web.Request) -> web.Response:
        fold = self._fold(request)
        try:
            snapshot = msgspec.msgpack.decode(await request.read(), type=Snapshot)
        except msgspec.MsgspecError as error:
            raise web.HTTPBadRequest(text=f"this is no snapshot: {error}") from error
        if snapshot.fold != fold:
            raise web.HTTPForbidden(text=f"this is a snapshot of {snapshot.fold}, not of {fold}")
        await asyncio.to_thread(self._snapshots.write, snapshot)
        return web.Response()

    async def _put_blob(self, request: web.Request) -> web.Response:
        """Add a body. One with this name has this content, by the digest in it: no body is ever replaced by another."""
        name = _body_name(request, request[ACCESS].writes, "write")
        body = await request.read()
        if not is_name_of(name, body):
            raise web.HTTPBadRequest(text=f"{name} is not the name of this body")
        await asyncio.to_thread(self._blobs.write, name, body)
        return web.Response()

    async def _get_blob(self, request: web.Request) -> web.Response:
        try:
            return web.Response(
                body=await asyncio.to_thread(self._blobs.read, _body_name(request, request[ACCESS].reads, "read"))
            )
        except FileNotFoundError:
            raise web.HTTPNotFound from None

    async def _delete_blob(self, request: web.Request) -> web.Response:
        await asyncio.to_thread(self._blobs.remove, _body_name(request, request[ACCESS].removes, "remove"))
        return web.Response()


async def _send(path: Path) -> web.FileResponse:
    """Returns the response with a file.

    aiohttp reports each file that it cannot open as missing, also for want of descriptors.
    """
    try:
        await asyncio.to_thread(lambda: path.open("rb").close())
    except FileNotFoundError:
        raise web.HTTPNotFound from None
    return web.FileResponse(path)


def _check(allowed: bool, what: str) -> None:  # noqa: FBT001
    if not allowed:
        raise web.HTTPForbidden(text=f"this worker {what}")


def _folder(request: web.Request) -> str:
    """Returns the folder of a request, which its token may pull."""
    folder = request.match_info["folder"]
    _check(request[ACCESS].may_pull(folder), f"does not pull {folder:.100}")
    return folder


def _body_name(request: web.Request, subjects: frozenset[str], verb: str) -> str:
    """Returns the name of a body, whose subject must be one of these."""
    name = request.match_info["name"]
    subject = subject_of(name)
    if not subject:
        raise web.HTTPNotFound
    _check(subject in subjects, f"does not {verb} bodies of {subject}")
    return name
