"""Tools that a provider runs on its servers.

Coding agents add them by themselves, and no model behind this gateway can call them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ANTHROPIC = re.compile(r"(?:web_search|web_fetch|tool_search_tool|advisor)_[\w-]{1,60}", re.ASCII)
OPENAI = re.compile(r"(?:web_search|image_generation|tool_search)[\w-]{0,60}", re.ASCII)
"""Types of tools that are accepted without effect; others that are unknown are refused."""


def is_hosted(kind: object, hosted: re.Pattern[str]) -> bool:
    """Return True if a tool of this type is accepted without effect."""
    return isinstance(kind, str) and hosted.fullmatch(kind) is not None


def hosted_tools(tools: Sequence[Mapping[str, Any]], hosted: re.Pattern[str]) -> list[Mapping[str, Any]]:
    """Return the tools that are accepted without effect."""
    return [tool for tool in tools if is_hosted(tool.get("type"), hosted)]


def ignored_tools(
    tools: Sequence[Mapping[str, Any]], hosted: re.Pattern[str], hints: Sequence[str], where: str = "tools"
) -> Iterator[str]:
    """Yield hosted tools, and the fields of other tools among `hints` that are set in any of them."""
    for index, tool in enumerate(tools):
        if is_hosted(kind := tool.get("type"), hosted):
            yield f"{where}[{index}] ({kind})"
    for name in hints:
        if any(one.get(name) for one in tools if not is_hosted(one.get("type"), hosted)):
            yield f"{where}[].{name}"
