"""Rewards of parts of a completion, as a line of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from areal_actors.core.span_rewards import TokenSpan

MOST_SPANS = 12
"""Spans of a call that are listed."""


def describe_spans(spans: Sequence[TokenSpan], text_of: Callable[[int, int], str]) -> str:
    """Returns the first of the spans, with the texts of their tokens; empty without spans."""
    described = []
    for span in spans[:MOST_SPANS]:
        text = text_of(span.start, span.end)
        described.append(span.describe() + (f" {text!r:.40}" if text else ""))
    if len(spans) > MOST_SPANS:
        described.append(f"{len(spans) - MOST_SPANS} more")
    return f"spans: {', '.join(described)}" if described else ""
