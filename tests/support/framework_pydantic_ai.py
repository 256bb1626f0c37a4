"""Pydantic AI over each of the three protocols, whole and streamed, with one tool."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


class PydanticAi:
    async def run(self, task, *, base_url, api_key):
        agent = Agent(model(task["over"], base_url, api_key), instructions="Solve the problem.", tools=[multiply])
        if not task["streamed"]:
            return (await agent.run(task["question"])).output
        async with agent.run_stream(task["question"]) as result:
            return await result.get_output()


def model(over, base_url, api_key):
    if over == "messages":
        client = AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key=api_key, max_retries=0)
        return AnthropicModel("default", provider=AnthropicProvider(anthropic_client=client))
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0))
    return (OpenAIChatModel if over == "chat" else OpenAIResponsesModel)("default", provider=provider)
