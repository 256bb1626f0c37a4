"""Sums of two numbers in plain words, for a small pretrained model.

It knows the idea, and is seldom right before it is trained.
"""

import random
import re
import zlib
from collections.abc import Mapping
from typing import Any

EXAMPLE = {"example_question": "What is 7 plus 5?", "example_answer": "7 + 5 = 12"}
LARGEST = 20
TRAIN_ROWS = 4000
TEST_ROWS = 300
HELD_OUT_SHARE = 5
"""One in this many pairs of numbers is held out, in every wording."""
QUESTIONS = (
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "How much are {a} and {b} together?",
)


def reward(task: Mapping[str, Any], output: str) -> float:
    """1 if the last number of the output is the sum, else 0."""
    return float(re.findall(r"\d+", output.replace(",", ""))[-1:] == [task["answer"]])


def tasks() -> dict[str, list[dict[str, str]]]:
    """Questions to train on, and held-out ones about other pairs of numbers; the same on every machine."""
    pairs = [(a, b) for a in range(2, LARGEST + 1) for b in range(2, LARGEST + 1)]
    held_out = [pair for pair in pairs if _is_held_out(*pair)]
    trained = [pair for pair in pairs if not _is_held_out(*pair)]
    return {"train": _questions(trained, TRAIN_ROWS, "train"), "test": _questions(held_out, TEST_ROWS, "test")}


def _is_held_out(a: int, b: int) -> bool:
    """True for held-out pairs; the order of the two numbers does not matter."""
    return zlib.crc32(f"{min(a, b)} {max(a, b)}".encode()) % HELD_OUT_SHARE == 0


def _questions(pairs: list[tuple[int, int]], count: int, split: str) -> list[dict[str, str]]:
    rng = random.Random(f"sums {split}")
    drawn = [(rng.choice(QUESTIONS), *rng.choice(pairs)) for _ in range(count)]
    return [{"question": question.format(a=a, b=b), "answer": str(a + b), **EXAMPLE} for question, a, b in drawn]
