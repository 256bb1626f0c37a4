"""An agent that asks two policies of its run, as a planner asks a worker."""

from typing import Any

from openai import AsyncOpenAI


class TwoPolicies:
    """The run's own policy and the policy `worker` answer the same question; the worker's answer is scored."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Returns the worker's answer."""
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client)
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        await client.chat.completions.create(model="default", messages=messages)
        completion = await client.chat.completions.create(model="worker", messages=messages)
        return completion.choices[0].message.content or ""
