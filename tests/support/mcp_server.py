"""An MCP server for tests: `mcp_server.py` talks over stdio, `mcp_server.py PORT` over HTTP."""

import os
import sys
import time

from mcp.server import MCPServer

server = MCPServer("abacus")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def who() -> str:
    """The server's process."""
    return f"{os.getpid()} {os.environ.get('COLOUR', '')}"


@server.tool()
def fail(reason: str) -> str:
    """Never works."""
    raise ValueError(reason)


@server.tool()
def sleep(seconds: float) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
