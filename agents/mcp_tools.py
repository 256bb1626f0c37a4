"""Solves a maths problem with tools of two kinds: functions of its own, and those of an MCP server."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from areal_actors.library.tooling import ToolingEnv

TURNS = 6
INSTRUCTIONS = "Solve the problem, with the tools where they help. End with `#### ` and the answer."
STDIO = (sys.executable, str(Path(__file__).with_name("calculator_server.py")))


def percentage(part: float, whole: float) -> float:
    """Return what percentage of the whole a part is."""
    return 100 * part / whole


class McpToolsAgent:
    """Uses `ToolingEnv` of this library: one list and one call for all tools of an episode."""

    def __init__(self, server: str | Sequence[str] = STDIO) -> None:
        """Use this server: a program that is started for each episode, or the URL of a running one."""
        self._server = server
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Let the model call tools until it answers without one, and return that answer."""
        client = self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        messages: list[Any] = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": task["question"]},
        ]
        async with ToolingEnv(percentage) as env:
            await env.connect(self._server)
            for _ in range(TURNS):
                completion = await client.chat.completions.create(model="default", messages=messages, tools=env.tools)
                answer = completion.choices[0].message
                if not answer.tool_calls:
                    return answer.content or ""
                messages += [answer.model_dump(exclude_none=True), *await env.call_all(answer)]
        return ""
