"""An agent with a tool, and its reward."""

import json
import re
from typing import Any

from openai import AsyncOpenAI

TURNS = 6
INSTRUCTIONS = "Solve the problem. Use the tools where they help. End with `#### ` and the answer."
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Work out an expression of numbers, + - * / and brackets.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]


class Agent:
    """One object serves all episodes of a process; each call of `run` is one episode."""

    def __init__(self) -> None:
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Let the model call tools until it answers without one.

        That answer is what the reward function gets as `output`.
        """
        client = self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        messages: list[Any] = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": task["question"]},
        ]
        for _ in range(TURNS):
            completion = await client.chat.completions.create(model="default", messages=messages, tools=TOOLS)
            answer = completion.choices[0].message
            if not answer.tool_calls:
                return answer.content or ""
            messages.append(answer.model_dump(exclude_none=True))
            for call in answer.tool_calls:
                result = call_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return ""


def call_tool(name: str, arguments: str) -> str:
    """The result of a tool call; an error is returned to the model, which may try again."""
    try:
        if name == "calculate":
            return calculate(json.loads(arguments)["expression"])
    except (ArithmeticError, KeyError, SyntaxError, TypeError, ValueError) as error:
        return f"error: {error}"
    return f"error: there is no tool `{name}`"


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, as text."""
    if not re.fullmatch(r"[\d\s.()+*/-]{1,100}", expression) or "**" in expression:
        raise ValueError("write numbers, + - * / and brackets only")
    return f"{eval(expression):.12g}"  # noqa: S307 - no letter, so no name


def reward(task: dict[str, Any], output: str) -> float:
    """Score an output: 1.0 if its last number is the task's answer."""
    numbers = re.findall(r"-?\d+", output)
    return float(bool(numbers) and numbers[-1] == task["answer"])
