"""The tools of an agent: Python functions and MCP servers behind one list and one call, closed when the episode ends.

async with ToolingEnv(add, search) as env:
    await env.connect(["python", "server.py"])
    completion = await client.chat.completions.create(model="default", messages=messages, tools=env.tools)
    messages += await env.call_all(completion.choices[0].message)
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import pydantic_core

from areal_actors.library.tool_schema import FunctionTool, tool_definition
from areal_actors.rollout.threads import in_thread
from areal_bus.message import FrozenMeta

__all__ = ["McpServer", "Tool", "ToolFailed", "ToolingEnv"]

F = TypeVar("F", bound=Callable[..., Any])

CONNECT_SECONDS = 30.0
CLOSE_SECONDS = 10.0


class ToolFailed(Exception):
    """Raised by a tool, or on its behalf: the model receives the message as the tool's result."""


class Tool(msgspec.Struct, metaclass=FrozenMeta):
    """A tool of the environment."""

    definition: dict[str, Any]
    call: Callable[[dict[str, Any]], Awaitable[str]]
    """Takes the model's unvalidated arguments and returns text; raises `ToolFailed`."""
    timeout_seconds: float


class ToolingEnv:
    """Tools of one episode. A tool's error is returned to the model as its result, and counted."""

    def __init__(self, *functions: Callable[..., Any], timeout_seconds: float = 60.0) -> None:
        """Add these functions; `timeout_seconds` limits each call unless its tool sets its own limit."""
        self.timeout_seconds = timeout_seconds
        self.calls = 0
        self.failures = 0
        self._tools: dict[str, Tool] = {}
        self._servers: list[McpServer] = []
        for function in functions:
            self.add(function)

    def add(self, function: F, *, name: str = "", description: str = "", timeout_seconds: float = 0.0) -> F:
        """Add a function, plain (runs in a thread) or async; its schema comes from signature and docstring.

        Raises:
            TypeError: it cannot be described as a tool.
            ValueError: another tool has this name.
        """
        tool = FunctionTool(function, name, description)
        self._add(
            Tool(
                definition=tool.definition(),
                call=_callable(tool),
                timeout_seconds=timeout_seconds or self.timeout_seconds,
            )
        )
        return function

    async def connect(
        self,
        server: str | Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        prefix: str = "",
        timeout_seconds: float = 0.0,
    ) -> None:
        """Add the tools of an MCP server.

        `server` is a URL (streamable HTTP), or a command to start here and connect to over stdio.

        Args:
            server: `http://…/mcp`, or the program and its arguments.
            environment: additional environment variables of the program.
            folder: working directory of the program.
            prefix: prepended to the names of its tools.
            timeout_seconds: limit of one call.

        Raises:
            ModuleNotFoundError: the package `mcp` is not installed.
            ConnectionError: the server cannot be started or does not answer.
            ValueError: another tool has one of its names; set a prefix.
        """
        connected = McpServer(server, environment, folder)
        await connected.open()
        self._servers.append(connected)
        for name, description, schema in await connected.tools():
            tool = Tool(
                definition=tool_definition(prefix + name, description, schema),
                call=connected.callable(name),
                timeout_seconds=timeout_seconds or self.timeout_seconds,
            )
            self._add(tool)

    def _add(self, tool: Tool) -> None:
        name = tool.definition["function"]["name"]
        if name in self._tools:
            raise ValueError(f"two tools have the name {name}; rename one, or give its server a prefix")
        self._tools[name] = tool

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Definitions of the tools, for chat completions."""
        return [tool.definition for tool in self._tools.values()]

    async def call(self, tool_call: Any) -> dict[str, Any]:
        """Run a tool call of the model and return the message with its result.

        Takes an SDK's object or an equal dict. Raises only if it is cancelled.
        """
        call = tool_call if isinstance(tool_call, Mapping) else tool_call.model_dump()
        self.calls += 1
        try:
            text = await self._run(call["function"]["name"], call["function"]["arguments"])
        except ToolFailed as error:
            self.failures += 1
            text = f"Error: {error}"
        return {"role": "tool", "tool_call_id": call["id"], "content": text}

    async def call_all(self, message: Any) -> list[dict[str, Any]]:
        """Run all tool calls of an assistant message concurrently; returns their result messages in order."""
        calls = (message.get("tool_calls") if isinstance(message, Mapping) else message.tool_calls) or []
        return await asyncio.gather(*(self.call(call) for call in calls))

    async def _run(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        if (tool := self._tools.get(name)) is None:
            raise ToolFailed(f"there is no tool {name}; available: {', '.join(self._tools) or 'none'}")
        try:
            raw = json.loads(arguments or "{}") if isinstance(arguments, str) else dict(arguments)
        except (ValueError, RecursionError) as error:
            raise ToolFailed(f"the arguments are not JSON: {error}") from error
        if not isinstance(raw, dict):
            raise ToolFailed(f"the arguments must be a JSON object, not {arguments!r:.100}")
        try:
            async with asyncio.timeout(tool.timeout_seconds):
                return await tool.call(raw)
        except TimeoutError as error:
            raise ToolFailed(f"{name} did not answer within {tool.timeout_seconds:g} s") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect from every MCP server, and stop those started here."""
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.close() for server in servers))


def _callable(tool: FunctionTool) -> Callable[[dict[str, Any]], Awaitable[str]]:
    async def call(raw: dict[str, Any]) -> str:
        try:
            arguments = tool.arguments(raw)
        except ValueError as error:
            raise ToolFailed(str(error)) from error
        try:
            if inspect.iscoroutinefunction(tool.function):
                return _text(await tool.function(**arguments))
            returned = await in_thread(tool.function, **arguments)
            return _text(await returned if inspect.isawaitable(returned) else returned)
        except (ToolFailed, GeneratorExit):
            raise
        except asyncio.CancelledError as error:
            if (running := asyncio.current_task()) is not None and running.cancelling():
                raise
            raise ToolFailed(f"CancelledError: {error}") from error
        except BaseException as error:  # user code may raise anything; the error becomes the tool's result
            raise ToolFailed(f"{type(error).__name__}: {error}") from error

    return call


def _text(returned: Any) -> str:
    return returned if isinstance(returned, str) else pydantic_core.to_json(returned, fallback=str).decode()


class McpServer:
    """An MCP server.

    A separate task holds the connection, so that a crash of the server does not raise in the agent's task.
    """

    def __init__(
        self, server: str | Sequence[str], environment: Mapping[str, str] | None, folder: str | Path | None
    ) -> None:
        self.name = server if isinstance(server, str) else " ".join(server)
        try:
            mcp = importlib.import_module("mcp")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "MCP servers need the package `mcp`, version 2: pip install 'mcp>=2'", name="mcp"
            ) from error
        if not isinstance(server, str):
            server = mcp.StdioServerParameters(
                command=server[0], args=list(server[1:]), env=dict(environment or {}), cwd=folder
            )
        self._client = mcp.Client(server)
        self._closing = asyncio.Event()

    async def open(self) -> None:
        """Connect; raises ConnectionError if the server does not answer."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = asyncio.create_task(self._connect(ready))
        try:
            await asyncio.wait([ready, self._connection], timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not ready.done():
                self._connection.cancel()
        if not ready.done():
            (failure,) = await asyncio.gather(self._connection, return_exceptions=True)
            timed_out = isinstance(failure, asyncio.CancelledError)
            reason = f"no answer within {CONNECT_SECONDS:g} s" if timed_out else _deepest(failure)
            raise ConnectionError(f"MCP server {self.name} cannot be reached: {reason}")

    async def _connect(self, ready: asyncio.Future[None]) -> None:
        async with self._client:
            ready.set_result(None)
            await self._closing.wait()

    async def tools(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return name, description and JSON schema of each tool."""
        definitions: list[Any] = []
        cursor = None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            definitions += page.tools
            if not (cursor := page.next_cursor):
                return [(tool.name, tool.description or "", tool.input_schema) for tool in definitions]

    def callable(self, tool: str) -> Callable[[dict[str, Any]], Awaitable[str]]:
        """Return a function that calls this tool."""

        async def call(arguments: dict[str, Any]) -> str:
            if self._connection.done():
                raise ToolFailed(f"MCP server {self.name} has disconnected")
            try:
                result = await self._client.call_tool(tool, arguments)
            except Exception as error:
                raise ToolFailed(f"{type(error).__name__}: {error}") from error
            text = "\n".join(_block(block) for block in result.content)
            if result.is_error:
                raise ToolFailed(text)
            return text or _text(result.structured_content)

        return call

    async def close(self) -> None:
        """Disconnect, and stop a program started here; gives up after `CLOSE_SECONDS`."""
        self._closing.set()
        _, pending = await asyncio.wait([self._connection], timeout=CLOSE_SECONDS)
        for task in pending:
            task.cancel()
        await asyncio.gather(self._connection, return_exceptions=True)


def _block(block: Any) -> str:
    """Return a content block of an MCP result as text."""
    text = getattr(block, "text", None)
    return text if isinstance(text, str) else json.dumps(block.model_dump(mode="json", exclude_none=True))


def _deepest(error: BaseException | None) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
