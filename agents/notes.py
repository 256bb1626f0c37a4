"""A number that the model keeps over four conversations.

Its history is compacted three times to what it wrote down itself.
"""

import random
import re
from collections.abc import Mapping
from typing import Any

from areal_actors.client import LightClient

NAMES = ["Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo"]
ITEMS = ["apples", "pens", "cards", "shells", "coins", "books", "eggs", "stamps"]
COMPACTIONS = 3
CARELESS_SHARE = 0.4
"""Share of the demonstrated notes with any number."""
LONGEST_NOTE = 40
"""Characters of an answer that are kept."""


class NotesAgent:
    """Asks for a number, and asks again in a new conversation that has only the answer of the one before."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Returns the answer of the last conversation."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        question = task["question"]
        for asked in range(COMPACTIONS + 1):
            completion = await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": question}]
            )
            note = _note(completion.choices[0].message.content or "")
            question = ask(task["name"], note, task["item"], is_last=asked + 1 == COMPACTIONS)
        return note


def ask(name: str, note: str, item: str, *, is_last: bool) -> str:
    """A conversation that begins with a note: another one is asked for, or the answer."""
    return f"{name} has {note} {item}. " + (
        f"How many {item} does {name} have?" if is_last else "Write a note for later."
    )


def _note(answer: str) -> str:
    numbers = re.findall(r"\d+", answer)
    return numbers[-1][:LONGEST_NOTE] if numbers else answer[:LONGEST_NOTE]


def reward(task: Mapping[str, Any], output: str) -> float:
    """1 if the number is what it was at the beginning, else 0."""
    return float(output == task["answer"])


def tasks(count: int = 3000) -> list[dict[str, Any]]:
    """Numbers of things."""
    rng = random.Random("notes")
    return [_task(rng.choice(NAMES), str(rng.randint(2, 20)), rng.choice(ITEMS)) for _ in range(count)]


def _task(name: str, number: str, item: str) -> dict[str, Any]:
    return {"question": ask(name, number, item, is_last=False), "answer": number, "name": name, "item": item}


def demonstrations() -> list[dict[str, Any]]:
    """Single conversations as a careless person has them.

    Many notes are any number, but a question is answered as the note has it.
    """
    rng = random.Random("careless")
    return [_demonstration(task, rng) for task in tasks()]


def _demonstration(task: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    is_last = rng.random() < 0.5
    is_careless = not is_last and rng.random() < CARELESS_SHARE
    written = str(rng.randint(2, 20)) if is_careless else task["answer"]
    question = ask(task["name"], task["answer"], task["item"], is_last=is_last)
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": f"#### {written}"}]}
