"""The OpenAI Agents SDK over both of OpenAI's protocols, whole and streamed, with a handoff beside a tool."""

from __future__ import annotations

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool


@function_tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


class OpenAIAgents:
    async def run(self, task, *, base_url, api_key):
        provider = OpenAIProvider(base_url=base_url, api_key=api_key, use_responses=task["over"] == "responses")
        config = RunConfig(model_provider=provider, tracing_disabled=True)
        solver = Agent(name="Solver", instructions="Solve the problem.", model="default", tools=[multiply])
        desk = Agent(name="Desk", instructions="Hand the problem on.", model="default", handoffs=[solver])
        first = desk if task.get("handoff") else solver
        if not task["streamed"]:
            return (await Runner.run(first, task["question"], run_config=config)).final_output
        result = Runner.run_streamed(first, task["question"], run_config=config)
        async for _ in result.stream_events():
            pass
        return result.final_output
