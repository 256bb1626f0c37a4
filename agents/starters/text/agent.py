"""An agent with one model call, and its reward."""

import re
from typing import Any

from openai import AsyncOpenAI


class Agent:
    """One object serves all episodes of a process; each call of `run` is one episode."""

    def __init__(self) -> None:
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Ask the task's question; the returned text is what the reward function gets as `output`."""
        client = self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        completion = await client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": task["question"]}],
        )
        return completion.choices[0].message.content or ""


def reward(task: dict[str, Any], output: str) -> float:
    """Score an output: 1.0 if its last number is the task's answer."""
    numbers = re.findall(r"-?\d+", output)
    return float(bool(numbers) and numbers[-1] == task["answer"])
