"""Recorded answers of genuine inference servers, served again over HTTP.

A request is known by its path and its body, without its id.
`AREAL_RECORD_SERVERS=1 pytest -m long tests/test_server_engines.py` records: the server below then stands before the
genuine one.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

IDS = {"rid", "request_id", "request_ids"}
BY_PATH_ALONE = ("/update_weights_from_disk", "/collective_rpc", "/abort_request", "/abort_requests")
"""Their bodies name folders and ids of the machine that recorded."""


def key_of(path: str, body: bytes) -> str:
    sent = {} if not body or path in BY_PATH_ALONE else json.loads(body)
    return f"{path} {json.dumps({name: value for name, value in sent.items() if name not in IDS}, sort_keys=True)}"


class RecordedServer:
    """Answers from a file, or from the genuine server behind it, whose answers it adds to the file."""

    def __init__(self, file: Path, genuine: str = "") -> None:
        self.file, self.genuine = file, genuine
        self.url = ""
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self._next: dict[str, int] = {}
        if not genuine:
            self.answers = json.loads(gzip.decompress(file.read_bytes()))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()
            if self.genuine:
                self.file.parent.mkdir(exist_ok=True)
                self.file.write_bytes(gzip.compress(json.dumps(self.answers, sort_keys=True).encode(), mtime=0))

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        key = key_of(request.path, body)
        if self.genuine:
            self.answers.setdefault(key, []).append(await self._asked(request, body))
        if key not in self.answers:
            return web.Response(status=501, text=f"not recorded: {key}")
        number = self._next.get(key, -1) + 1
        self._next[key] = number
        answer = self.answers[key][min(number, len(self.answers[key]) - 1)]
        return web.Response(status=answer["status"], text=answer["text"], content_type=answer["type"])

    async def _asked(self, request: web.Request, body: bytes) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, self.genuine + request.path_qs, data=body, headers={"Content-Type": "application/json"}
            ) as answer,
        ):
            return {"status": answer.status, "text": await answer.text(), "type": answer.content_type}
