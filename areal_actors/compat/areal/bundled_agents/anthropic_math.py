"""An agent of mathematics on the Anthropic client: `areal.workflow.anthropic.math_agent`."""

from __future__ import annotations

import importlib
from typing import Any

from areal_actors.compat.areal.bundled_agents.arithmetic_tools import address, score, without

LONGEST = 1024
"""Maximum number of tokens of an answer where the program states none: the API needs one."""


class AnthropicMathAgent:
    """One answer, one reward; keyword arguments are those of the call."""

    def __init__(self, **options: Any) -> None:
        self.options = {"max_tokens": LONGEST, **without(options, "max_completion_tokens", "max_turns")}

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer the row's messages."""
        client = importlib.import_module("anthropic").AsyncAnthropic(**address(extra_kwargs, "ANTHROPIC"))
        system = "\n".join(message["content"] for message in data["messages"] if message["role"] == "system")
        messages = [message for message in data["messages"] if message["role"] != "system"]
        options = {**self.options, "system": system} if system else self.options
        answer = await client.messages.create(model="default", messages=messages, **options)
        return await score("".join(block.text for block in answer.content if block.type == "text"), data)
