"""Solves a maths problem through the Anthropic SDK: its messages, its tools and its own loop."""

import re
from typing import Any

from anthropic import AsyncAnthropic, beta_async_tool

INSTRUCTIONS = "Solve the problem, with the tools where they help. End with `#### ` and the answer."


@beta_async_tool
async def calculate(expression: str) -> str:
    """Work out an arithmetic expression of numbers, + - * / and brackets."""
    if not re.fullmatch(r"[\d\s.()+*/-]{1,100}", expression) or "**" in expression:
        return "error: write numbers, + - * / and brackets only"
    try:
        return f"{eval(expression):.12g}"  # noqa: S307 - no letter, so no name
    except (ArithmeticError, SyntaxError, TypeError) as error:
        return f"error: {error}"


class AnthropicToolsAgent:
    """One client for all episodes; they share its connections."""

    def __init__(self) -> None:
        self._client = AsyncAnthropic(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Let the SDK call tools until the model answers without one, and return that answer."""
        client = self._client.with_options(base_url=base_url.removesuffix("/v1"), api_key=api_key)
        runner = client.beta.messages.tool_runner(
            model="default",
            max_tokens=512,
            max_iterations=6,
            system=INSTRUCTIONS,
            messages=[{"role": "user", "content": task["question"]}],
            tools=[calculate],
        )
        message = await runner.until_done()
        return "".join(block.text for block in message.content if block.type == "text")
