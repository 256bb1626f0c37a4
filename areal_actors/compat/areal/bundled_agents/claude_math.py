"""An agent of mathematics on the Claude Agent SDK: `areal.workflow.anthropic.claude_math_agent`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from areal_actors.compat.areal.bundled_agents.arithmetic_tools import CALCULATE, TOOLS, address, score

SERVER = "calculator"


class ClaudeMathToolAgent:
    """Claude Code with a calculator, in a process of its own; needs `claude-agent-sdk` and its program `claude`."""

    def __init__(self, max_turns: int | None = None, **_: Any) -> None:
        self.max_turns = max_turns

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer the last of the row's messages."""
        sdk = importlib.import_module("claude_agent_sdk")
        given = address(extra_kwargs, "ANTHROPIC")
        options = sdk.ClaudeAgentOptions(
            system_prompt=CALCULATE,
            max_turns=self.max_turns,
            model="default",
            mcp_servers={SERVER: sdk.create_sdk_mcp_server(SERVER, tools=[_as_tool(sdk, tool) for tool in TOOLS])},
            allowed_tools=[f"mcp__{SERVER}__{tool.__name__}" for tool in TOOLS],
            env={"ANTHROPIC_BASE_URL": given["base_url"] or "", "ANTHROPIC_API_KEY": given["api_key"]},
        )
        answer = ""
        async for message in sdk.query(prompt=data["messages"][-1]["content"], options=options):
            answer = getattr(message, "result", None) or answer
        return await score(answer, data)


def _as_tool(sdk: Any, function: Callable[..., float]) -> Any:
    parameters = dict.fromkeys(inspect.signature(function).parameters, float)

    @sdk.tool(function.__name__, function.__doc__ or "", parameters)  # type: ignore[untyped-decorator]
    async def call(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": str(function(**arguments))}]}

    return call
