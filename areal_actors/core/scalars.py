"""Numbers of other people's code: scalars of numpy and torch as Python's own, and rounding that is no difference."""

from __future__ import annotations

from typing import Any

HIGHEST_REWARD = 1e9
"""Largest reward: squares of larger ones, as in a variance, swamp every other reward in 32 bits."""
RELATIVE, ABSOLUTE = 1e-12, 1e-15
"""Differences of equal rewards that were computed in different orders, as 0.1 + 0.2 and 0.3, are far below; those of
rewards above."""


def plain_scalar(value: Any) -> Any:
    """Return a scalar of numpy or torch as a Python number or bool; anything else as it is."""
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        return item()
    except (TypeError, ValueError, RuntimeError):  # several values, or none
        return value


def differ(lowest: float, highest: float) -> bool:
    """Return True if two numbers differ by more than rounding."""
    return highest - lowest > RELATIVE * max(abs(lowest), abs(highest)) + ABSOLUTE
