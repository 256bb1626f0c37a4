"""Answers of a judge: the JSON that it is asked for, and how its text is read, whatever stands around it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

REASON = "reason"
"""Field in which a judge gives its reason, before its scores."""
SHOWN_REASON = f'"{REASON}": "one or two sentences"'
WINNERS = ("A", "B", "tie")


class UnreadableAnswer(Exception):
    """Raised for an answer of a judge without a complete verdict."""


class VerdictForm(msgspec.Struct, frozen=True):
    """A form of answers."""

    schema: Mapping[str, Any]
    """JSON schema, for servers that constrain answers."""
    request: str
    """The form in words, at the end of the prompt."""
    read: Callable[[str], Mapping[str, float]]
    """Reads a text as scores from 0 to 1 by name; raises UnreadableAnswer."""


def score_form(names: Sequence[str], scale: int, *, explains: bool) -> VerdictForm:
    """Returns the form of a rubric, or of a list: a score from 0 to `scale` for each name."""
    number = {"type": "integer", "minimum": 0, "maximum": scale}
    reason = {REASON: {"type": "string"}} if explains else {}
    fields = {**reason, **dict.fromkeys(names, number)}
    shown = ", ".join([*([SHOWN_REASON] if explains else []), *(f'"{name}": 0-{scale}' for name in names)])
    return VerdictForm(
        _object_schema(fields),
        f"Answer with one JSON object and nothing else: {{{shown}}}",
        lambda text: _read_scores(text, names, scale),
    )


def winner_form(*, explains: bool) -> VerdictForm:
    """Returns the form of a pair; its scores are those of `A` and `B`, ½ each for a tie."""
    reason = {REASON: {"type": "string"}} if explains else {}
    fields = {**reason, "winner": {"type": "string", "enum": list(WINNERS)}}
    shown = f"{SHOWN_REASON}, " if explains else ""
    return VerdictForm(
        _object_schema(fields),
        f'Answer with one JSON object and nothing else: {{{shown}"winner": "A" or "B" or "tie"}}',
        _read_winner,
    )


def _object_schema(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(fields), "required": list(fields), "additionalProperties": False}


def _read_scores(text: str, names: Sequence[str], scale: int) -> Mapping[str, float]:
    for answer in _objects_in(text):
        nested = answer.get("scores")
        scores = nested if isinstance(nested, dict) else answer
        if all(name in scores for name in names):
            return {name: _share(name, scores[name], scale) for name in names}
    raise UnreadableAnswer(f"it has no JSON object with {', '.join(names)}")


def _share(name: str, value: Any, scale: int) -> float:
    try:
        number = float(str(value).partition("/")[0])
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not 0 <= number <= scale:
        raise UnreadableAnswer(f"its score of {name} is {value!r}, which is no number from 0 to {scale}")
    return number / scale


def _read_winner(text: str) -> Mapping[str, float]:
    for answer in _objects_in(text):
        winner = str(answer.get("winner", "")).strip().upper().removeprefix("ANSWER ")
        if winner in {"A", "B", "TIE"}:
            first = {"A": 1.0, "B": 0.0}.get(winner, 0.5)
            return {"A": first, "B": 1.0 - first}
    raise UnreadableAnswer('it has no JSON object whose `winner` is "A", "B" or "tie"')


def _objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects in a text, the last of it first."""
    decoder = json.JSONDecoder()
    for start in (place for place in range(len(text) - 1, -1, -1) if text[place] == "{"):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value
