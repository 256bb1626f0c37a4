"""The built-in agent of a recipe that names none: one call with the task's prompt, whose answer is scored."""

from __future__ import annotations

from typing import Any

import openai

from areal_actors.core.prompts import prompt_of


class SingleTurn:
    """Calls the model once; its episodes share the client's connections."""

    def __init__(self, system_prompt: str = "") -> None:
        self.system_prompt = system_prompt
        self._client = openai.AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Returns the text of the answer."""
        client = self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        messages: Any = prompt_of(task, self.system_prompt)
        answer = await client.chat.completions.create(model="default", messages=messages)
        return answer.choices[0].message.content or ""
