"""Tools and reward that the bundled agents of mathematics share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from areal_actors.compat.areal.reward import AsyncRewardWrapper, get_math_verify_worker

CALCULATE = "Solve the problem step by step with the calculator tools; state the final number at the end."
"""Instructions of an agent with tools."""


def math_reward_fn(completions: str, answer: str) -> float:
    """Return 1.0 if the answer's number or expression is equal to the right one, else 0.0."""
    return get_math_verify_worker().verify(completions, answer.rpartition("#### ")[2])


async def score(completion: str | None, data: Mapping[str, Any]) -> float:
    """Return the reward of a completion for a row with `answer`."""
    return await AsyncRewardWrapper(math_reward_fn)(completions=completion or "", answer=str(data["answer"]))


def address(extra_kwargs: Mapping[str, Any], api: str) -> dict[str, Any]:
    """Return the arguments of a client: address, key and connections, or those of the environment (`OPENAI_…`)."""
    return {
        "base_url": extra_kwargs.get("base_url") or os.environ.get(f"{api}_BASE_URL"),
        "api_key": extra_kwargs.get("api_key") or os.environ.get(f"{api}_API_KEY") or "none",
        "http_client": extra_kwargs.get("http_client"),
        "max_retries": 0,
    }


def without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the options that a client's call takes."""
    return {name: value for name, value in options.items() if name not in names}


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def subtract(a: float, b: float) -> float:
    """Subtract the second number from the first."""
    return a - b


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def divide(a: float, b: float) -> float:
    """Divide the first number by the second."""
    return a / b


def power(a: float, b: float) -> float:
    """Raise the first number to the power of the second."""
    return float(a**b)


def sqrt(a: float) -> float:
    """Return the square root of a number."""
    return math.sqrt(a)


TOOLS: tuple[Callable[..., float], ...] = (add, subtract, multiply, divide, power, sqrt)
