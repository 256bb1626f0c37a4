"""An agent that takes its time before it asks, and makes nothing of errors."""

from __future__ import annotations

import asyncio
import contextlib

import openai


class SlowAgent:
    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    async def run(self, task: dict[str, str], *, base_url: str, api_key: str) -> str:
        await asyncio.sleep(self.seconds)
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            with contextlib.suppress(openai.APIError):
                answer = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": task["question"]}]
                )
                return answer.choices[0].message.content or ""
        return ""
