"""Solves a grade-school maths problem with one model call, through the OpenAI client and nothing else."""

from typing import Any

from openai import AsyncOpenAI


class Gsm8kAgent:
    """One agent serves many episodes at once; they share the client's connections."""

    def __init__(self) -> None:
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Ask the question and return the answer's text, which the reward function scores."""
        client = self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        completion = await client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": task["question"]}],
        )
        return completion.choices[0].message.content or ""
