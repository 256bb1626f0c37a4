"""Solves a maths problem with the OpenAI Agents SDK and its own loop of tool calls, over the Responses API."""

import re
from typing import Any

from agents import Agent, MaxTurnsExceeded, ModelBehaviorError, OpenAIProvider, RunConfig, Runner, function_tool


@function_tool
def calculate(expression: str) -> str:
    """Work out an arithmetic expression of numbers, + - * / and brackets."""
    if not re.fullmatch(r"[\d\s.()+*/-]{1,100}", expression) or "**" in expression:
        return "error: write numbers, + - * / and brackets only"
    try:
        return f"{eval(expression):.12g}"  # noqa: S307 - no letter, so no name
    except (ArithmeticError, SyntaxError, TypeError) as error:
        return f"error: {error}"


class OpenAIAgentsSdkAgent:
    """The SDK's agent is made once; each episode brings its own model provider."""

    def __init__(self) -> None:
        self._agent = Agent(
            name="Mathematician",
            instructions="Solve the problem, with the tools where they help. End with `#### ` and the answer.",
            model="default",
            tools=[calculate],
        )

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Run the SDK's loop and return its final output; errors of the model become an empty answer."""
        provider = OpenAIProvider(base_url=base_url, api_key=api_key, use_responses=True)
        config = RunConfig(model_provider=provider, tracing_disabled=True)  # traces would go to OpenAI
        try:
            result = await Runner.run(self._agent, task["question"], run_config=config, max_turns=6)
        except (MaxTurnsExceeded, ModelBehaviorError):
            return ""
        return str(result.final_output)
