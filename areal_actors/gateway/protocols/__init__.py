"""The wire formats that the gateway serves.

They are OpenAI's chat completions, completions and responses, and Anthropic's messages.
"""

from __future__ import annotations

from areal_actors.gateway.protocols.anthropic import COUNT_TOKENS, MESSAGES
from areal_actors.gateway.protocols.base import AnyDialect
from areal_actors.gateway.protocols.chat_completions import CHAT
from areal_actors.gateway.protocols.completions import COMPLETIONS
from areal_actors.gateway.protocols.responses import RESPONSES

__all__ = ["CHAT", "COMPLETIONS", "COUNT_TOKENS", "DIALECTS", "MESSAGES", "RESPONSES", "dialect_of_path"]

DIALECTS: tuple[AnyDialect, ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS)


def dialect_of_path(path: str) -> AnyDialect:
    """Return the dialect whose format errors at this path have; chat completions by default."""
    return next((dialect for dialect in DIALECTS if f"/{dialect.path}" in path), CHAT)
