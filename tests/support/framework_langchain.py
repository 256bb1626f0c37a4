"""LangChain's chat models over each of the three protocols, whole and streamed, with one tool in a loop of our own."""

from __future__ import annotations

from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


class LangChain:
    async def run(self, task, *, base_url, api_key):
        tied = model(task["over"], base_url, api_key).bind_tools([multiply])
        messages = [("system", "Solve the problem."), ("user", task["question"])]
        while (answer := await invoke(tied, messages, streamed=task["streamed"])).tool_calls:
            messages += [answer, *[await multiply.ainvoke(call) for call in answer.tool_calls]]
        return str(answer.text)


async def invoke(tied, messages, *, streamed):
    if not streamed:
        return await tied.ainvoke(messages)
    chunks = [chunk async for chunk in tied.astream(messages)]
    return sum(chunks[1:], start=chunks[0])


def model(over, base_url, api_key):
    if over == "messages":
        return ChatAnthropic(
            model="default", base_url=base_url.removesuffix("/v1"), api_key=api_key, max_tokens=512, max_retries=0
        )
    return ChatOpenAI(
        model="default", base_url=base_url, api_key=api_key, use_responses_api=over == "responses", max_retries=0
    )
