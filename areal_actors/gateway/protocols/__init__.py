"""The wire formats that the gateway serves: OpenAI's chat completions, completions and responses, and Anthropic's messages."""

from __future__ import annotations

from areal_actors.gateway.protocols.anthropic import CountTokens, Messages
from areal_actors.gateway.protocols.base import AnyDialect
from areal_actors.gateway.protocols.chat_completions import ChatCompletions
from areal_actors.gateway.protocols.completions import Completions
from areal_actors.gateway.protocols.responses import Responses

__all__ = ["CHAT", "DIALECTS", "ChatCompletions", "Completions", "CountTokens", "Messages", "Responses", "dialect_of_path"]

CHAT = ChatCompletions()
DIALECTS: tuple[AnyDialect, ...] = (CHAT, Completions(), Responses(), Messages(), CountTokens())


def dialect_of_path(path: str) -> AnyDialect:
    """Return the dialect whose format errors at this path have; chat completions by default."""
    return next((dialect for dialect in DIALECTS if f"/{dialect.path}" in path), CHAT)
