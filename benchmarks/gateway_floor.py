"""Baseline of the gateway benchmark: aiohttp, uvloop and msgspec, with a stub instead of an engine.

    python benchmarks/gateway_floor.py echo|minimal|fast TOKENIZER_FOLDER DELAY_SECONDS

`echo` reads the body and sends a constant, streamed where it is asked to. `minimal` applies the chat template and
tokenises every prompt anew with the tokenizers library, `fast` with the gateway's own executor. All are stateless: no
sessions, no records, no bus. Prints the port, and exits when standard input is closed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any

import msgspec
import uvloop
from aiohttp import web
from tokenizers import Tokenizer

from areal_actors.tokenization.tokenizer import ChatTokenizer

ANSWER = "That makes twelve apples. " * 12
ANSWER_TOKENS = 64
TOKEN_SECONDS = 0.01
"""Delay between two tokens of a streamed answer."""
JSON = "application/json"
STREAMED = (b'"stream":true', b'"stream": true')


class Stub:
    """A chat template, a tokenizer, and a constant answer."""

    def __init__(self, folder: str, delay_seconds: float, *, fast: bool = False) -> None:
        self._chat = ChatTokenizer.load(folder)
        library = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self._encode = self._chat.encode if fast else lambda text: library.encode(text, add_special_tokens=False).ids
        self._delay_seconds = delay_seconds
        self._count = 0

    async def prompt_tokens(self, body: dict[str, Any]) -> int:
        """Tokenize the prompt and wait for the engine's delay; returns the number of tokens."""
        ids = self._encode(self._chat.render(body["messages"]))
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        return len(ids)

    def answer(self, prompt_tokens: int) -> dict[str, Any]:
        """A chat completion."""
        self._count += 1
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": ANSWER_TOKENS,
            "total_tokens": prompt_tokens + ANSWER_TOKENS,
        }
        message = {"role": "assistant", "content": ANSWER}
        choices = [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}]
        identity = {
            "id": f"call-{self._count}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "default",
        }
        return {**identity, "choices": choices, "usage": usage}

    def chunk(self, text: str) -> dict[str, Any]:
        """A chunk of a streamed completion."""
        choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
        return {
            "id": "call-0",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": "default",
            "choices": choices,
        }


def application(kind: str, stub: Stub) -> web.Application:
    """The server of this kind."""
    constant = msgspec.json.encode(stub.answer(500))

    async def echo(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if any(field in body for field in STREAMED):
            return await streamed(request)
        return web.Response(body=constant, content_type=JSON)

    async def minimal(request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        prompt_tokens = await stub.prompt_tokens(body)
        if not body.get("stream"):
            return web.Response(body=msgspec.json.encode(stub.answer(prompt_tokens)), content_type=JSON)
        return await streamed(request)

    async def streamed(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(ANSWER_TOKENS):
            await response.write(b"data: " + msgspec.json.encode(stub.chunk("apples ")) + b"\n\n")
            await asyncio.sleep(TOKEN_SECONDS)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def described(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/{name}", described)  # a router asks for health and model before it forwards
    app.router.add_post("/v1/chat/completions", echo if kind == "echo" else minimal)
    return app


async def serve(kind: str, folder: str, delay_seconds: float) -> None:
    """Serve until standard input is closed."""
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a router probes for HTTP/2
    runner = web.AppRunner(application(kind, Stub(folder, delay_seconds, fast=kind == "fast")), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], float(sys.argv[3])))
