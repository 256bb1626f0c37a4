"""The built-in agent of a recipe that names none: one call with the task's prompt, whose answer is scored."""

from __future__ import annotations

from typing import Any

from areal_actors.client import LightClient
from areal_actors.core.prompts import prompt_of


class SingleTurn:
    """Calls the model once."""

    def __init__(self, system_prompt: str = "") -> None:
        self.system_prompt = system_prompt

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Returns the text of the answer."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        messages: Any = prompt_of(task, self.system_prompt)
        answer = await client.chat.completions.create(model="default", messages=messages)
        return answer.choices[0].message.content or ""
