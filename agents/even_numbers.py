"""Answers with many numbers, each of which should be even: every number is rewarded where it stands."""

import re
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"\d+")


def reward(task: Mapping[str, Any], output: str, *, spans: bool = True) -> dict[str, Any]:
    """The share of the answer's numbers that are even, and 1 or 0 on the tokens of each; 0 without four numbers.

    `spans = False` leaves out the rewards of single numbers.
    """
    numbers = list(NUMBER.finditer(output))
    even = [float(int(number[0]) % 2 == 0) for number in numbers]
    scored: dict[str, Any] = {"reward": sum(even) / len(even) if len(even) >= 4 else 0.0, "numbers": len(even)}
    if spans:
        scored["spans"] = [
            {"start": number.start(), "end": number.end(), "reward": value, "name": "even"}
            for number, value in zip(numbers, even, strict=True)
        ]
    return scored
