"""CAMEL's agent with clients that CAMEL makes, of its platform for OpenAI or for servers that resemble it."""

from __future__ import annotations

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter


class Characters(BaseTokenCounter):
    """Keeps CAMEL from downloading another model's tokenizer."""

    def count_tokens_from_messages(self, messages):
        return len(str(messages)) // 4

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, token_ids):
        return "".join(map(chr, token_ids))


def multiply(a: float, b: float) -> str:
    """Multiply two numbers.

    Args:
        a (float): The first.
        b (float): The second.
    """
    return f"{a * b:g}"


class Camel:
    async def run(self, task, *, base_url, api_key):
        platform = ModelPlatformType.OPENAI if task["over"] == "openai" else ModelPlatformType.OPENAI_COMPATIBLE_MODEL
        model = ModelFactory.create(
            model_platform=platform,
            model_type="default",
            url=base_url,
            api_key=api_key,
            token_counter=Characters(),
            max_retries=0,
        )
        agent = ChatAgent("Solve the problem.", model=model, tools=[FunctionTool(multiply)], max_iteration=6)
        return (await agent.astep(task["question"])).msgs[-1].content
