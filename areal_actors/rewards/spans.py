"""Reads rewards: numbers, and those of spans and of calls, as a reward function or an agent states them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.core.errors import RewardError
from areal_actors.core.scalars import HIGHEST_REWARD
from areal_actors.core.span_rewards import SpanReward

FIELDS = frozenset({"reward", "name", "text", "start", "end", "call"})
MOST_SPANS = 10_000
"""Maximum number of stated spans of an episode."""


def check_reward(value: object) -> float:
    """Returns the value as a float if it is a finite real number: int, float, bool, or a scalar of numpy or torch.

    Raises:
        RewardError: it is anything else, such as None, a text, NaN or an infinity; the message names it.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(f"a reward must be a real number, got {_describe_value(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RewardError(f"a reward must be a real number, got {_describe_value(value)}") from error
    if not math.isfinite(number):
        raise RewardError(f"a reward must be finite, got {number}")
    if abs(number) > HIGHEST_REWARD:
        raise RewardError(f"a reward must be within ±{HIGHEST_REWARD:g}, got {number:g}; scale it")
    return number


def read_spans(stated: object) -> tuple[SpanReward, ...]:
    """Returns stated spans: mappings of `reward`, `text` or `start` and `end`, and on request `name` and `call`.

    Raises:
        RewardError: a span is something else, its reward is not finite, or there are too many; names the span.
    """
    if not isinstance(stated, Sequence) or isinstance(stated, str | bytes):
        raise RewardError(f"`spans` must be a list of spans, got {type(stated).__name__}")
    if len(stated) > MOST_SPANS:
        raise RewardError(f"`spans` has {len(stated):,} spans; return at most {MOST_SPANS:,}")
    return tuple(span if isinstance(span, SpanReward) else _read_span(span, place) for place, span in enumerate(stated))


def _read_span(stated: object, place: int) -> SpanReward:
    where = f"span {place}"
    if not isinstance(stated, Mapping) or not FIELDS.issuperset(stated) or "reward" not in stated:
        form = '{"text": "…", "reward": -1.0} or {"start": 0, "end": 9, "reward": 1.0}, and `name` and `call`'
        raise RewardError(f"{where} must be {form}, got {stated!r:.100}")
    text, start, end, name = (stated.get(field) for field in ("text", "start", "end", "name"))
    is_range = isinstance(start, int) and isinstance(end, int) and 0 <= start < end and text is None
    if not is_range and not (isinstance(text, str) and text and start is None and end is None):
        raise RewardError(
            f"{where} must have either a `text` that is not empty, or 0 <= `start` < `end`, got {stated!r:.100}"
        )
    if name is not None and (not isinstance(name, str) or not name):
        raise RewardError(f"{where}: `name` must be text that is not empty, got {name!r:.60}")
    try:
        reward = check_reward(stated["reward"])
    except RewardError as error:
        raise RewardError(f"{where}: {error}") from error
    call = stated.get("call")
    return SpanReward(
        reward=reward,
        name=name or "span",
        text=text or "",
        start=start or 0,
        end=end or 0,
        call="" if call is None else str(call),
    )


def read_call_rewards(stated: Mapping[Any, Any]) -> dict[str, float]:
    """Returns rewards of calls by their places among the trained calls, such as `0` and `-1`, or by their ids.

    Raises:
        RewardError: a reward is not finite; names the call.
    """
    rewards: dict[str, float] = {}
    for call, reward in stated.items():
        try:
            rewards[str(call)] = check_reward(reward)
        except RewardError as error:
            raise RewardError(f"call {call}: {error}") from error
    return rewards


def _describe_value(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"
