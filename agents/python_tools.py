"""Solves a maths problem with two tools, a calculator and a Python interpreter, through the chat protocol's `tools`."""

import asyncio
import json
import os
import re
from typing import Any

from areal_actors.client import LightClient
from areal_actors.sandbox import run_python

TURNS = 6
INSTRUCTIONS = "Solve the problem. Use the tools where they help. End with `#### ` and the answer."


def tool(name: str, parameter: str, description: str) -> dict[str, Any]:
    """A tool with one text parameter, as the chat protocol describes it."""
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS: list[Any] = [
    tool("calculate", "expression", "Work out an expression of numbers, + - * / and brackets."),
    tool(
        "run_python", "code", "Run a Python program and see what it prints. It has the standard library and no network."
    ),
]


class PythonToolsAgent:
    """Returns tool errors to the model, which may try again."""

    def __init__(self) -> None:
        self._programs = asyncio.Semaphore(os.cpu_count() or 1)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Let the model call tools until it answers without one, and return that answer."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
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
                result = await self._call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return ""

    async def _call(self, name: str, arguments: str) -> str:
        try:
            given = json.loads(arguments)
            match name, given:
                case "calculate", {"expression": str(expression)}:
                    return calculate(expression)
                case "run_python", {"code": str(code)}:
                    async with self._programs:
                        return await run_python(code)
        except (ArithmeticError, SyntaxError, TypeError, ValueError) as error:
            return f"error: {error}"
        return f"error: there is no tool `{name}` that takes {arguments:.200}"


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, as text."""
    if not re.fullmatch(r"[\d\s.()+*/-]{1,100}", expression) or "**" in expression:
        raise ValueError("write numbers, + - * / and brackets only")
    return f"{eval(expression):.12g}"  # noqa: S307 - no letter, so no name
