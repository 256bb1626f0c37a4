"""Answers with several numbers that should all be even: each is rewarded where it stands."""

import re
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"\d+")
FEWEST = 4
"""Numbers that a right answer has at least."""


def reward(task: Mapping[str, Any], output: str, *, spans: bool = True) -> dict[str, Any]:  # noqa: ARG001 - of any task
    """1 for an answer of at least four numbers that are all even, and 1 or 0 on the tokens of each number.

    `spans = False` leaves out the rewards of single numbers.
    """
    numbers = list(NUMBER.finditer(output))
    even = [float(int(number[0]) % 2 == 0) for number in numbers]
    scored: dict[str, Any] = {
        "reward": float(len(even) >= FEWEST and all(even)),
        "even": sum(even) / len(even) if even else 0.0,
        "numbers": len(even),
    }
    if spans:
        scored["spans"] = [
            {"start": number.start(), "end": number.end(), "reward": value, "name": "even"}
            for number, value in zip(numbers, even, strict=True)
        ]
    return scored
