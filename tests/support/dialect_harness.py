"""A gateway without a model: the dialects behind a real server, answering from a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols import CHAT, COMPLETIONS, DIALECTS, MESSAGES, RESPONSES
from areal_actors.gateway.protocols import COUNT_TOKENS as COUNT
from areal_actors.messages import ModelRequest, ModelResponsePart, ToolCallPart

Script = Callable[[ModelRequest], Sequence[ModelResponsePart]]
CREATED = 1_700_000_000
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {}}
PIXEL = "data:image/png;base64,aGk="
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LEAST = {
    CHAT.name: {"messages": [USER]},
    COMPLETIONS.name: {"prompt": "hi"},
    RESPONSES.name: {"input": "hi"},
    MESSAGES.name: {"messages": [USER], "max_tokens": 9},
    COUNT.name: {"messages": [USER]},
}


def called(dialect, **fields):
    request = dialect.decode(json.dumps(LEAST[dialect.name] | fields).encode())
    return dialect.call(request, "s")


def turns(*messages):
    return {"messages": [USER, *messages]}


class Served:
    """Calls that came, and where the server is."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.calls: list[ModelRequest] = []
        self.bodies: list[dict[str, Any]] = []


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Served]:
    """Serve every dialect at `/v1/...`; a streamed answer is the script's parts, a whole one has one part per
    choice."""
    served = Served("")
    app = web.Application()
    for dialect in DIALECTS:
        app.router.add_post(f"/v1/{dialect.path}", _answering(dialect, script, served))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield served
    finally:
        await runner.cleanup()


def _answering(dialect: Any, script: Script, served: Served) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        served.bodies.append(msgspec.json.decode(body))
        try:
            asked = dialect.decode(body)
            call = dialect.call(asked, "session")
        except RequestError as error:
            return web.json_response(dialect.error(str(error), 400, error.field), status=400)
        served.calls.append(call)
        parts = script(call)
        if parts[0].error and not call.stream:
            return web.json_response(
                dialect.error(parts[0].error, parts[0].error_status, parts[0].error_field), status=parts[0].error_status
            )
        if not call.stream:
            return web.Response(
                body=msgspec.json.encode(dialect.answer(asked, CREATED).whole(wholes(parts))),
                content_type="application/json",
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        answer = dialect.answer(asked, CREATED)
        for part in parts:
            await response.write(answer.part(part))
        await response.write_eof()
        return response

    return answer


def wholes(parts: Sequence[ModelResponsePart]) -> list[ModelResponsePart]:
    """The parts of each choice in one."""
    return [
        _joined([part for part in parts if part.choice == choice]) for choice in sorted({part.choice for part in parts})
    ]


def _joined(parts: Sequence[ModelResponsePart]) -> ModelResponsePart:
    calls: dict[int, ToolCallPart] = {}
    for piece in (piece for part in parts for piece in part.tool_calls):
        begun = calls.get(piece.index, ToolCallPart(index=piece.index, id=piece.id, name=piece.name))
        calls[piece.index] = msgspec.structs.replace(begun, arguments=begun.arguments + piece.arguments)
    return msgspec.structs.replace(
        parts[-1],
        reasoning="".join(part.reasoning for part in parts),
        text="".join(part.text for part in parts),
        tool_calls=tuple(calls.values()),
        logprobs=tuple(token for part in parts for token in part.logprobs),
    )


def response_parts(
    *parts: dict[str, Any], interaction: str = "task-1-0", choice: int = 0, finish_reason: str = "stop", **ending: Any
) -> list[ModelResponsePart]:
    """An answer in these pieces; the last has the finish reason."""
    counts = {
        "prompt_tokens": 12,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "reasoning_tokens": 2,
        "last": True,
        **ending,
    }
    pieces = [ModelResponsePart(interaction=interaction, choice=choice, **piece) for piece in parts]
    return [*pieces, ModelResponsePart(interaction=interaction, choice=choice, finish_reason=finish_reason, **counts)]


def tool_pieces(index: int, identifier: str, name: str, *arguments: str) -> list[dict[str, Any]]:
    """A tool call in pieces."""
    first = {"tool_calls": (ToolCallPart(index=index, id=identifier, name=name),)}
    return [first, *[{"tool_calls": (ToolCallPart(index=index, arguments=piece),)} for piece in arguments]]
