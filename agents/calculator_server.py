"""A calculator as an MCP server: over stdio, or with a port as its argument over HTTP."""

import re
import sys

from mcp.server import MCPServer

server = MCPServer("calculator")


@server.tool()
def calculate(expression: str) -> str:
    """Work out an arithmetic expression of numbers, + - * / and brackets."""
    if not re.fullmatch(r"[\d\s.()+*/-]{1,100}", expression) or "**" in expression:
        raise ValueError("write numbers, + - * / and brackets only")
    return f"{eval(expression):.12g}"  # noqa: S307 - no letter, so no name


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
