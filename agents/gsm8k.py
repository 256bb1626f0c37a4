"""Solves a grade-school maths problem with one model call, through the light client, called like the OpenAI SDK."""

from typing import Any

from areal_actors.client import LightClient


class Gsm8kAgent:
    """One agent serves many episodes at once; their clients share connections."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Ask the question and return the answer's text, which the reward function scores."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        completion = await client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": task["question"]}],
        )
        return completion.choices[0].message.content or ""
