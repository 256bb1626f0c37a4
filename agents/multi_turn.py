"""Solves a maths problem in several turns: a wrong answer comes back with the remark that it is wrong."""

import re
from typing import Any

from areal_actors.client import LightClient

TURNS = 4
TRY_AGAIN = (
    "Your answer is wrong. Look for the mistake, work through the problem again, and end with `#### ` and the answer."
)


class MultiTurnAgent:
    """Sends the whole conversation each time, so every call continues the tokens of the one before."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Ask until the answer is right or the turns are used up, and return the last answer, which is scored.

        With `task.turn_discount` in the recipe, part of that reward reaches the earlier turns.
        """
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        for _ in range(TURNS):
            completion = await client.chat.completions.create(model="default", messages=messages)
            answer = completion.choices[0].message.content or ""
            if last_number(answer) == last_number(task["answer"]):
                break
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": TRY_AGAIN}]
        return answer


def last_number(text: str) -> float | None:
    """The number that a text ends with; thousands may be separated by commas."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(found[-1].replace(",", "")) if found else None
