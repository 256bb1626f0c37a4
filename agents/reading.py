"""Reading: a story has two numbers, and the question asks for one of them; there is nothing to calculate."""

import random
import re
from collections.abc import Mapping
from typing import Any

from areal_actors.client import LightClient

NAMES = [
    "Ana",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gia",
    "Hugo",
    "Ida",
    "Jon",
    "Kim",
    "Leo",
    "Mia",
    "Nils",
    "Olga",
    "Paul",
]
ITEMS = ["apples", "pens", "cards", "shells", "coins", "books", "eggs", "stamps", "plums", "beads", "cups", "nuts"]
STORIES = (
    (
        "{name} has {a} {item} and buys {b} more.",
        "How many {item} does {name} have at first?",
        "How many {item} does {name} buy?",
    ),
    (
        "{name} fills {a} bags with {b} {item} each.",
        "How many bags does {name} fill?",
        "How many {item} are in each bag?",
    ),
    ("{name} had {a} {item} and lost {b}.", "How many {item} had {name} at first?", "How many {item} are lost?"),
)
"""Stories with two numbers, a and b; a question for a, and one for b."""


class ReadingAgent:
    """One question, one answer."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Ask, and return the answer's text."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        completion = await client.chat.completions.create(model="default", messages=messages)
        return completion.choices[0].message.content or ""


def reward(task: Mapping[str, Any], output: str) -> float:
    """1 if the last number of the output is the answer, else 0."""
    return float(re.findall(r"\d+", output)[-1:] == [task["answer"]])


def tasks() -> list[dict[str, str]]:
    """Stories, each with one of its two questions."""
    rng = random.Random("stories")
    return [_task(rng) for _ in range(3000)]


def _task(rng: random.Random) -> dict[str, str]:
    story, *questions = rng.choice(STORIES)
    asked, numbers = rng.randrange(2), rng.sample(range(2, 21), 2)
    names = {"name": rng.choice(NAMES), "item": rng.choice(ITEMS), "a": numbers[0], "b": numbers[1]}
    return {"question": f"{story} {questions[asked]}".format(**names), "answer": str(numbers[asked])}
