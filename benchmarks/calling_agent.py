"""An agent that makes some model calls in one conversation, for benchmarks: with the OpenAI client or the light one."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from areal_actors.client import LightClient

REPLY = "and then "


class CallingAgent:
    """One agent serves many episodes at once; they share the client's connections."""

    def __init__(self, calls: int = 1, reply_words: int = 10, *, light: bool = False) -> None:
        """Makes `calls` calls; between two of them the user replies with about this number of words."""
        self._light = light
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)
        self._calls = calls
        self._reply = {"role": "user", "content": REPLY * (reply_words // 2)}

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Ask the question, reply to each answer but the last, and return that."""
        text, messages = "", [{"role": "user", "content": task["question"]}]
        if not self._calls:
            return text
        client: Any = (
            LightClient(base_url=base_url, api_key=api_key, max_retries=0)
            if self._light
            else self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        )
        for _ in range(self._calls):
            completion = await client.chat.completions.create(model="default", messages=messages)
            text = completion.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": text}, self._reply]
        return text
