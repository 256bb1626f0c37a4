"""LiteLLM as a client over each of the three protocols, with one tool in a loop of our own."""

from __future__ import annotations

import json

import litellm

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
MULTIPLY = {"name": "multiply", "description": "Multiply two numbers.", "parameters": SCHEMA}


class LiteLlm:
    async def run(self, task, *, base_url, api_key):
        where = {"api_key": api_key, "max_retries": 0}
        if task["over"] == "responses":
            return await responses(task["question"], {"model": "openai/default", "api_base": base_url, **where})
        if task["over"] == "messages":
            return await chat(
                task["question"], {"model": "anthropic/default", "api_base": base_url.removesuffix("/v1"), **where}
            )
        return await chat(task["question"], {"model": "openai/default", "api_base": base_url, **where})


async def chat(question, where):
    messages = [{"role": "system", "content": "Solve the problem."}, {"role": "user", "content": question}]
    tools = [{"type": "function", "function": MULTIPLY}]
    while True:
        answer = (await litellm.acompletion(messages=messages, tools=tools, **where)).choices[0].message
        if not answer.tool_calls:
            return answer.content
        messages.append(answer.model_dump())
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": product(call.function.arguments)}
            for call in answer.tool_calls
        ]


async def responses(question, where):
    items = [{"role": "user", "content": question}]
    tools = [{"type": "function", **MULTIPLY}]
    while True:
        response = await litellm.aresponses(input=items, tools=tools, instructions="Solve the problem.", **where)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output[-1].content[0].text
        items += [item.model_dump(exclude_none=True) for item in response.output]
        items += [
            {"type": "function_call_output", "call_id": call.call_id, "output": product(call.arguments)}
            for call in calls
        ]


def product(arguments):
    given = json.loads(arguments)
    return str(given["a"] * given["b"])
