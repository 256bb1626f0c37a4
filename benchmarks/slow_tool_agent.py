"""The agent of `agents/gsm8k.py` with a slow tool. The tool is simulated: it only sleeps.

Its latency is log-normal with a mean of 0.1 s and a long tail (sigma 1: one in twenty takes more than 0.3 s), drawn
from a generator that is seeded by the task, so that the same task is as slow in every run.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

from openai import AsyncOpenAI

MEAN_SECONDS = 0.1
SIGMA = 1.0


def tool_seconds(task: str) -> float:
    """Seconds of the tool call for this task id."""
    return random.Random(f"tool {task}").lognormvariate(math.log(MEAN_SECONDS) - SIGMA**2 / 2, SIGMA)


class SlowToolAgent:
    """Asks the question, then waits for the tool."""

    def __init__(self) -> None:
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Return the answer's text when the tool is done."""
        client = self._client.with_options(base_url=base_url, api_key=api_key)
        completion = await client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": task["question"]}],
        )
        await asyncio.sleep(tool_seconds(task["id"]))
        return completion.choices[0].message.content or ""
