"""Extraction: a sentence has a person and a city, and the answer is both in one fixed form; nothing has to be known or calculated."""

import random
import re
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI

TRAIN_ROWS = 4000
TEST_ROWS = 400
INSTRUCTION = "Pull the name and the city out of this sentence and answer as `name: X; city: Y`: "
EXAMPLE = ("Omar has lived in Berlin since 2001.", "name: Omar; city: Berlin")
"""A sentence and its answer, which come before the question."""
NAMES = {
    "train": ("Ana", "Ben", "Cleo", "Daniel", "Eva", "Finn", "Grace", "Hugo", "Ida", "Jonas", "Karim", "Lena", "Mia", "Nils", "Olga", "Paul"),
    "test": ("Alice", "Boris", "Carla", "David", "Elena", "Felix", "Hana", "Ivan"),
}  # fmt: skip
CITIES = {
    "train": ("Paris", "Lima", "Oslo", "Cairo", "Tokyo", "Madrid", "Vienna", "Dublin", "Athens", "Boston", "Delhi", "Prague", "Quito", "Rome"),
    "test": ("London", "Lisbon", "Sydney", "Nairobi", "Warsaw", "Toronto", "Geneva", "Havana"),
}  # fmt: skip
SENTENCES = {
    "train": (
        "{name} moved to {city} last spring and likes it there.",
        "After ten years in {city}, {name} opened a small bakery.",
        "The train to {city} was late, so {name} took the bus.",
        "{name} studies medicine in {city} and plays the piano.",
        "Every summer {name} visits an old friend in {city}.",
        "In {city} it rained all day, and {name} stayed at home.",
    ),
    "test": (
        "{name} found a new job in {city} two weeks ago.",
        "The museum in {city} was closed when {name} arrived.",
        "Before the wedding {name} flew to {city} with two suitcases.",
    ),
}
PART = 0.2
"""Reward of each of the two parts that the answer names without the right form: the first thing to learn."""


class ExtractionAgent:
    """One call, with a worked example before the question."""

    def __init__(self) -> None:
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Ask, and return the answer's text."""
        client = self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        sentence, answer = EXAMPLE
        messages: list[Any] = [
            {"role": "user", "content": f"{INSTRUCTION}{sentence}"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"{INSTRUCTION}{task['question']}"},
        ]
        completion = await client.chat.completions.create(model="default", messages=messages)
        return completion.choices[0].message.content or ""


def reward(task: Mapping[str, Any], output: str) -> dict[str, float]:
    """1 for exactly `name: X; city: Y`, else a little for each part that the output names; `exact` is 1 or 0."""
    parts = re.fullmatch(r"name: (?P<name>.+); city: (?P<city>.+)", task["answer"])
    named = [part for part in (parts.groups() if parts else ()) if re.search(rf"\b{re.escape(part)}\b", output)]
    exact = float(output.strip() == task["answer"])
    return {"reward": exact or PART * len(named), "exact": exact}


def tasks() -> dict[str, list[dict[str, str]]]:
    """Sentences to train on, and held-out ones with other names, cities and wordings; the same on every machine."""
    return {"train": _tasks("train", TRAIN_ROWS), "test": _tasks("test", TEST_ROWS)}


def _tasks(split: str, count: int) -> list[dict[str, str]]:
    rng = random.Random(f"extraction {split}")
    drawn = [(rng.choice(SENTENCES[split]), rng.choice(NAMES[split]), rng.choice(CITIES[split])) for _ in range(count)]
    return [{"question": text.format(name=name, city=city), "answer": f"name: {name}; city: {city}"} for text, name, city in drawn]
