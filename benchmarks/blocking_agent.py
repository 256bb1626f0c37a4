"""An agent like the documentation's that blocks the event loop for ten seconds in one episode of 32."""

from __future__ import annotations

import time
from typing import Any

from openai import AsyncOpenAI

from areal_actors.library.workflow import workflow_context

SECONDS = 10.0
EVERY_GROUPS = 8
"""Groups have four episodes; the first episode of every eighth group sleeps."""


class BlockingAgent:
    """Asks the question; in some episodes it blocks the event loop first."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Return the answer's text."""
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
        group, _, member = workflow_context.get().episode.partition(".")
        if int(group) % EVERY_GROUPS == 0 and member == "0":
            time.sleep(SECONDS)  # noqa: ASYNC251 - this is what is measured
        answer = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": task["question"]}]
        )
        return answer.choices[0].message.content or ""
