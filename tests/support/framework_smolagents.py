"""smolagents: the agent that calls tools as JSON, and the one that writes Python."""

from __future__ import annotations

from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

AGENTS = {"tools": ToolCallingAgent, "code": CodeAgent}


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a * b


class SmolAgents:
    def run(self, task, *, base_url, api_key):
        model = OpenAIModel(model_id="default", api_base=base_url, api_key=api_key)
        agent = AGENTS[task["over"]](
            tools=[multiply], model=model, max_steps=4, verbosity_level=LogLevel.OFF, stream_outputs=task["streamed"]
        )
        return str(agent.run(task["question"]))
