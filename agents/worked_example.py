"""Asks a question after a worked example, which comes with the task.

Small pretrained models hardly keep to a form without one.
"""

from typing import Any

from openai import AsyncOpenAI


class WorkedExampleAgent:
    """One call, after an earlier turn from the task's fields `example_question` and `example_answer`."""

    def __init__(self) -> None:
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Ask, and return the answer's text."""
        client = self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        messages: list[Any] = [
            {"role": "user", "content": task["example_question"]},
            {"role": "assistant", "content": task["example_answer"]},
            {"role": "user", "content": task["question"]},
        ]
        completion = await client.chat.completions.create(model="default", messages=messages)
        return completion.choices[0].message.content or ""
