"""Usage of a judge for one score: its calls of a model, their tokens and cost, which become metrics of the reward."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["add_usage"]


class JudgeUsage:
    """Sums over the calls of one score."""

    def __init__(self) -> None:
        self.calls = 0
        self.tokens = 0
        self.cost = 0.0

    def metrics(self) -> dict[str, float]:
        """Returns the metrics by name; none if no call was added."""
        if not self.calls:
            return {}
        return {"judge_calls": float(self.calls), "judge_tokens": float(self.tokens), "judge_cost": self.cost}


_USAGE: ContextVar[JudgeUsage | None] = ContextVar("judge_usage", default=None)


def start_usage() -> JudgeUsage:
    """Begin the sums of one score, in its own context."""
    usage = JudgeUsage()
    _USAGE.set(usage)
    return usage


def add_usage(usage: Any, *, input_price: float = 0.0, output_price: float = 0.0) -> None:
    """Add a model call to `judge_calls`, `judge_tokens` and `judge_cost` of the score that is being computed.

    Args:
        usage: `usage` of a response of the OpenAI or Anthropic SDK, or a mapping with their names of token counts.
        input_price: price of a million prompt tokens.
        output_price: price of a million completion tokens.
    """
    sums = _USAGE.get()
    if sums is None:
        return
    prompt, completion = (
        _count(usage, "prompt_tokens", "input_tokens"),
        _count(usage, "completion_tokens", "output_tokens"),
    )
    sums.calls += 1
    sums.tokens += prompt + completion
    sums.cost += (prompt * input_price + completion * output_price) / 1e6


def _count(usage: Any, *names: str) -> int:
    for name in names:
        value = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
        if value is not None:
            return int(value)
    return 0
