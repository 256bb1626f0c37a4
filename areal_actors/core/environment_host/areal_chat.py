"""Harness `areal-chat` for verifiers environments: a chat with the task's tools, in the process that plays the episode.

It does what verifiers' harness `null` does, without a program of its own for each turn, which takes seconds of CPU time
to start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import openai
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import is_context_overflow, truncate_tool_output
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["ArealChatHarness"]

DONE = vf.ProgramResult(exit_code=0, stdout="", stderr="")


class ArealChatConfig(vf.HarnessConfig):
    """Configuration of `areal-chat`."""


class ArealChatHarness(vf.Harness[ArealChatConfig]):
    """Calls the model until it answers without a tool call, or its context is full."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Run one segment of the conversation."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        messages += (
            [{"role": "user", "content": prompt}]
            if isinstance(prompt, str)
            else [message_to_wire(prompt_message) for prompt_message in prompt or []]
        )
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            http = openai.DefaultAsyncHttpxClient(verify=False)  # the endpoint is on this machine
            client = openai.AsyncOpenAI(
                base_url=endpoint, api_key=secret, max_retries=0, timeout=None, http_client=http
            )
            await stack.enter_async_context(client)
            tools, *connected = await connect_mcp({"mcpServers": servers}, stack)
            offered: dict[str, Any] = {"tools": tools} if tools else {}
            while True:
                try:
                    answer = await client.chat.completions.create(model=ctx.model, messages=messages, **offered)
                except openai.APIStatusError as error:
                    if is_context_overflow(error):
                        return DONE
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
                message = answer.choices[0].message.model_dump(exclude_none=True)
                messages.append(message)
                if not (calls := message.get("tool_calls")):
                    return DONE
                for call in calls:
                    messages.append(
                        {
                            "role": "tool",
                            "tool_call_id": call["id"],
                            "content": await _call(call["function"], *connected),
                        }
                    )


async def _call(function: Mapping[str, Any], dispatch: dict[str, tuple[str, str]], servers: dict[str, Any]) -> Any:
    """The result of a tool call; a mistake of the model is a text for it."""
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except json.JSONDecodeError as error:
        return f"error: the arguments are not JSON ({error}); call the tool again with valid JSON"
    if not isinstance(arguments, dict):
        return f"error: the arguments must be a JSON object, got {type(arguments).__name__}"
    if function["name"] not in dispatch:
        return f"error: there is no tool {function['name']!r}; known: {', '.join(dispatch) or 'none'}"
    result = await call_mcp(servers, dispatch, function["name"], arguments)
    return truncate_tool_output(result) if isinstance(result, str) else result
