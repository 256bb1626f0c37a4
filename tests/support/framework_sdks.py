"""The OpenAI and Anthropic SDKs, whole and streamed, with one tool in a loop of our own."""

from __future__ import annotations

import json

import anthropic
import openai

SYSTEM = "Solve the problem."
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
MULTIPLY = {"name": "multiply", "description": "Multiply two numbers."}


def product(given):
    return str(given["a"] * given["b"])


class OpenAiSdk:
    """Chat completions, or responses of which everything is sent again."""

    async def run(self, task, *, base_url, api_key):
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            converse = self.responses if task["over"] == "responses" else self.chat
            return await converse(client, task["question"], streamed=task["streamed"])

    async def chat(self, client, question, *, streamed):
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        sent = {"model": "default", "tools": [{"type": "function", "function": {**MULTIPLY, "parameters": SCHEMA}}]}
        while True:
            if streamed:
                async with client.chat.completions.stream(messages=messages, **sent) as stream:
                    answer = (await stream.get_final_completion()).choices[0].message
            else:
                answer = (await client.chat.completions.create(messages=messages, **sent)).choices[0].message
            if not answer.tool_calls:
                return answer.content
            messages.append(answer.model_dump(exclude_none=True))
            results = [(call.id, product(json.loads(call.function.arguments))) for call in answer.tool_calls]
            messages += [
                {"role": "tool", "tool_call_id": identifier, "content": result} for identifier, result in results
            ]

    async def responses(self, client, question, *, streamed):
        items = [{"role": "user", "content": question}]
        sent = {
            "model": "default",
            "instructions": SYSTEM,
            "tools": [{"type": "function", **MULTIPLY, "parameters": SCHEMA}],
        }
        while True:
            if streamed:
                async with client.responses.stream(input=items, **sent) as stream:
                    answer = await stream.get_final_response()
            else:
                answer = await client.responses.create(input=items, **sent)
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return answer.output_text
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            results = [(call.call_id, product(json.loads(call.arguments))) for call in calls]
            items += [
                {"type": "function_call_output", "call_id": identifier, "output": result}
                for identifier, result in results
            ]


class AnthropicSdk:
    """Messages."""

    async def run(self, task, *, base_url, api_key):
        messages = [{"role": "user", "content": task["question"]}]
        sent = {
            "model": "default",
            "max_tokens": 512,
            "system": SYSTEM,
            "tools": [{**MULTIPLY, "input_schema": SCHEMA}],
        }
        async with anthropic.AsyncAnthropic(
            base_url=base_url.removesuffix("/v1"), api_key=api_key, max_retries=0
        ) as client:
            while True:
                if task["streamed"]:
                    async with client.messages.stream(messages=messages, **sent) as stream:
                        answer = await stream.get_final_message()
                else:
                    answer = await client.messages.create(messages=messages, **sent)
                calls = [block for block in answer.content if block.type == "tool_use"]
                if not calls:
                    return "".join(block.text for block in answer.content if block.type == "text")
                results = [
                    {"type": "tool_result", "tool_use_id": call.id, "content": product(call.input)} for call in calls
                ]
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
