"""The server of `gateway_floor.py minimal` in FastAPI on uvicorn, with uvloop and httptools.

python benchmarks/gateway_fastapi.py fastapi TOKENIZER_FOLDER DELAY_SECONDS
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI
from gateway_floor import Stub
from pydantic import BaseModel, ConfigDict


class Chat(BaseModel):
    """Body of a request, with validation of the used fields."""

    model_config = ConfigDict(extra="allow")
    messages: list[dict[str, Any]]


def application(stub: Stub) -> FastAPI:
    """Return the application with one endpoint."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat_completions(body: Chat) -> dict[str, Any]:
        return stub.answer(await stub.prompt_tokens({"messages": body.messages}))

    return app


async def serve(folder: str, delay_seconds: float) -> None:
    """Serve until standard input is closed."""
    config = uvicorn.Config(
        application(Stub(folder, delay_seconds)), host="127.0.0.1", port=0, log_level="error", access_log=False
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[2], float(sys.argv[3])))
