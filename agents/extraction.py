"""Extraction: a sentence has a person and a city, and the answer is both in one fixed form.

Nothing has to be known or calculated.
"""

import random
import re
from collections.abc import Mapping
from typing import Any

TRAIN_ROWS = 4000
TEST_ROWS = 300
INSTRUCTION = "Pull the name and the city out of this sentence and answer as `name: X; city: Y`: "
EXAMPLE = {
    "example_question": f"{INSTRUCTION}Omar has lived in Berlin since 2001.",
    "example_answer": "name: Omar; city: Berlin",
}
NAMES = {
    "train": [
        "Ana",
        "Ben",
        "Cleo",
        "Daniel",
        "Eva",
        "Finn",
        "Grace",
        "Hugo",
        "Ida",
        "Jonas",
        "Karim",
        "Lena",
        "Mia",
        "Nils",
        "Olga",
    ],
    "test": ["Alice", "Boris", "Carla", "David", "Elena", "Felix", "Hana", "Ivan"],
}
CITIES = {
    "train": [
        "Paris",
        "Lima",
        "Oslo",
        "Cairo",
        "Tokyo",
        "Madrid",
        "Vienna",
        "Dublin",
        "Athens",
        "Boston",
        "Delhi",
        "Prague",
        "Rome",
    ],
    "test": ["London", "Lisbon", "Sydney", "Nairobi", "Warsaw", "Toronto", "Geneva", "Havana"],
}
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
"""Reward of each of the two parts that an answer names without having the form: the first thing to learn."""


def reward(task: Mapping[str, Any], output: str) -> dict[str, float]:
    """1 for exactly `name: X; city: Y`, else a little for each part that the output names; `exact` is 1 or 0."""
    parts = [pair.partition(": ")[2] for pair in task["answer"].split("; ")]
    named = [part for part in parts if re.search(rf"\b{re.escape(part)}\b", output)]
    exact = float(output.strip() == task["answer"])
    return {"reward": exact or PART * len(named), "exact": exact}


def tasks() -> dict[str, list[dict[str, str]]]:
    """Sentences to train on, and held-out ones with other names, cities and wordings; the same on every machine."""
    return {"train": _tasks("train", TRAIN_ROWS), "test": _tasks("test", TEST_ROWS)}


def _tasks(split: str, count: int) -> list[dict[str, str]]:
    rng = random.Random(f"extraction {split}")
    drawn = [(rng.choice(SENTENCES[split]), rng.choice(NAMES[split]), rng.choice(CITIES[split])) for _ in range(count)]
    return [_task(text.format(name=name, city=city), name, city) for text, name, city in drawn]


def _task(sentence: str, name: str, city: str) -> dict[str, str]:
    return {"question": f"{INSTRUCTION}{sentence}", "answer": f"name: {name}; city: {city}", **EXAMPLE}
