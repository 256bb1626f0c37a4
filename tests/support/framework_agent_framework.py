"""Microsoft's Agent Framework over chat completions and over responses, whole and streamed, with one tool."""

from __future__ import annotations

from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient

CLIENTS = {"chat": OpenAIChatCompletionClient, "responses": OpenAIChatClient}


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


class AgentFramework:
    async def run(self, task, *, base_url, api_key):
        client = CLIENTS[task["over"]](model="default", base_url=base_url, api_key=api_key)
        agent = client.as_agent(instructions="Solve the problem.", tools=[multiply])
        if not task["streamed"]:
            return (await agent.run(task["question"])).text
        stream = agent.run(task["question"], stream=True)
        assert [update async for update in stream]
        return (await stream.get_final_response()).text
