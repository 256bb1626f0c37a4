"""Solves a maths problem with CAMEL's ChatAgent, which calls its tools itself."""

import re
from typing import Any

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter
from openai import AsyncOpenAI, OpenAI

INSTRUCTIONS = "Solve the problem, with the tools where they help. End with `#### ` and the answer."


def calculate(expression: str) -> str:
    """Work out an arithmetic expression of numbers, + - * / and brackets.

    Args:
        expression (str): such as (2 + 3) * 4.
    """
    if not re.fullmatch(r"[\d\s.()+*/-]{1,100}", expression) or "**" in expression:
        return "error: write numbers, + - * / and brackets only"
    try:
        return f"{eval(expression):.12g}"  # noqa: S307 - no letter, so no name
    except (ArithmeticError, SyntaxError, TypeError) as error:
        return f"error: {error}"


class CharacterCounter(BaseTokenCounter):
    """Keeps CAMEL from downloading another model's tokenizer only to measure its memory."""

    def count_tokens_from_messages(self, messages: list[Any]) -> int:
        """Estimate four characters per token."""
        return len(str(messages)) // 4

    def encode(self, text: str) -> list[int]:
        """One number for each character."""
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        """The text of such numbers."""
        return "".join(map(chr, token_ids))


class CamelChatAgent:
    """CAMEL's agent holds a conversation, so every episode makes its own; the connections are shared."""

    def __init__(self) -> None:
        self._client = OpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)
        self._async_client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Take one step of CAMEL's agent, tool calls included, and return its message."""
        model = ModelFactory.create(
            model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
            model_type="default",
            url=base_url,
            api_key=api_key,
            token_counter=CharacterCounter(),
            client=self._client.with_options(base_url=base_url, api_key=api_key),
            async_client=self._async_client.with_options(base_url=base_url, api_key=api_key),
        )
        agent = ChatAgent(INSTRUCTIONS, model=model, tools=[FunctionTool(calculate)], max_iteration=6)
        response = await agent.astep(task["question"])
        return response.msgs[-1].content if response.msgs else ""
