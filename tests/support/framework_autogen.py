"""AutoGen's assistant, whole and streamed, with one tool."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.UNKNOWN, structured_output=False
)


async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


class AutoGen:
    async def run(self, task, *, base_url, api_key):
        client = OpenAIChatCompletionClient(
            model="default", base_url=base_url, api_key=api_key, model_info=INFO, max_retries=0
        )
        agent = AssistantAgent(
            "mathematician",
            model_client=client,
            tools=[multiply],
            system_message="Solve the problem.",
            reflect_on_tool_use=task["over"] == "reflection",
            max_tool_iterations=12 if task["over"] == "loop" else 1,
            model_client_stream=task["streamed"],
        )
        result = await agent.run(task=task["question"])
        await client.close()
        return result.messages[-1].content
