"""Agents and rewards that limit a run on purpose: they compute, wait, or make their client anew for each episode."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from openai import AsyncOpenAI


class LimitedAgent:
    """Asks the question once; `compute` and `wait` are seconds before it, `new_client` makes a client each time."""

    def __init__(self, *, compute: float = 0.0, wait: float = 0.0, new_client: bool = False) -> None:
        self._compute, self._wait, self._new_client = compute, wait, new_client
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Return the answer's text."""
        if self._new_client:
            client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
        else:
            client = self._client.with_options(base_url=base_url, api_key=api_key)
        spin(self._compute)
        await asyncio.sleep(self._wait)
        answer = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": task["question"]}]
        )
        return answer.choices[0].message.content or ""


def reward_by_waiting(task: dict[str, Any], output: str) -> float:
    """As the answer is long, after a wait."""
    del task
    time.sleep(0.05)
    return min(len(output), 100) / 100


def reward_by_computing(task: dict[str, Any], output: str) -> float:
    """As the answer is long, after a computation."""
    del task
    spin(0.04)
    return min(len(output), 100) / 100


def spin(seconds: float) -> None:
    """Compute for this CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
