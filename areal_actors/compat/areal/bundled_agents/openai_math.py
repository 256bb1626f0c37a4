"""Agents of mathematics on the OpenAI client: `areal.workflow.openai.math_agent`."""

from __future__ import annotations

import importlib
from typing import Any

from openai import AsyncOpenAI

from areal_actors.compat.areal.bundled_agents.arithmetic_tools import CALCULATE, TOOLS, address, score, without
from areal_actors.compat.areal.multi_turn import AGAIN


class OpenAIMathAgent:
    """One answer, one reward; keyword arguments are those of the call."""

    def __init__(self, **options: Any) -> None:
        self.options = without(options, "max_tokens", "max_turns")

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer the row's messages."""
        client = AsyncOpenAI(**address(extra_kwargs, "OPENAI"))
        answer = await client.chat.completions.create(model="default", messages=data["messages"], **self.options)
        return await score(answer.choices[0].message.content, data)


class OpenAIMultiTurnMathAgent:
    """Answers again while the answer is wrong; each call has its own reward."""

    def __init__(self, max_turns: int = 8, **options: Any) -> None:
        self.max_turns = max_turns
        self.options = without(options, "max_tokens")

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> dict[str, float]:
        """Answer the row's messages; returns rewards by the ids of the calls."""
        client = AsyncOpenAI(**address(extra_kwargs, "OPENAI"))
        messages, rewards = list(data["messages"]), dict[str, float]()
        while len(rewards) < self.max_turns and 1.0 not in rewards.values():
            messages += [{"role": "user", "content": AGAIN}] if rewards else []
            answer = await client.chat.completions.create(model="default", messages=messages, **self.options)
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            rewards[answer.id] = await score(answer.choices[0].message.content, data)
        return rewards


class OpenAIMathToolAgent:
    """An agent of the OpenAI Agents SDK with a calculator; needs `openai-agents`."""

    def __init__(self, **options: Any) -> None:
        self.options = without(options, "max_tokens", "max_turns", "max_completion_tokens")

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer the last of the row's messages."""
        sdk = importlib.import_module("agents")  # of the distribution openai-agents
        client = AsyncOpenAI(**address(extra_kwargs, "OPENAI"))
        settings = sdk.ModelSettings(**self.options)
        model = sdk.OpenAIChatCompletionsModel(model="default", openai_client=client)
        tools = [sdk.function_tool(tool) for tool in TOOLS]
        agent = sdk.Agent(name="calculator", instructions=CALCULATE, tools=tools, model=model, model_settings=settings)
        configuration = sdk.RunConfig(tracing_disabled=True)
        result = await sdk.Runner.run(agent, input=data["messages"][-1]["content"], run_config=configuration)
        return await score(str(result.final_output), data)
