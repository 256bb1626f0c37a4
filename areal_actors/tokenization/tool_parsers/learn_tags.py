"""Learns how a chat template writes arguments between delimiters.

It may write types, CDATA, and elements for lists and objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from areal_actors.tokenization.tool_parsers.argument_tags import CDATA, ArgumentTags, ItemTags, ValueHead

KEY, INNER = "kappa", "omicron"
VALUE, OTHER_VALUE, INTEGER = "value-41c7", "value-d08e", 86420
SAMPLES: Mapping[str, Any] = {
    "string": VALUE,
    "integer": INTEGER,
    "number": 8642.5,
    "boolean": True,
    "null": None,
    "object": {INNER: VALUE},
    "array": [VALUE],
}
"""A value of each JSON type."""
WRITTEN = {
    "string": re.escape(VALUE),
    "integer": r"86420(?:\.0)?",
    "number": r"8642\.5",
    "boolean": r"[tT]rue",
    "null": r"null|None",
    "object": r"\{.*",
    "array": r"\[.*",
}
"""Pattern of each value as text."""
TEXT_WITH_MARKS = f"{VALUE}\n<{OTHER_VALUE}"

Render = Callable[[Mapping[str, Any]], str]
"""Returns what the template writes between a call's name and its end for these arguments; empty if it rejects them."""


class Frame(NamedTuple):
    """Delimiters around a single argument."""

    before: str
    """From the name of the call to the delimiter that opens the argument."""
    tags: ArgumentTags
    """Delimiters as far as known from strings."""


def learn_types(frame: Frame, render: Render) -> ArgumentTags:
    """Return the delimiters of arguments of all types."""
    tags = frame.tags
    string = tags.heads[0]
    heads = {"string": string}
    for kind, value in SAMPLES.items():
        head = _head_of(frame, kind, render({KEY: value}))
        if head is not None:
            heads[kind] = head
    return tags._replace(
        heads=_merge(heads), cdata=CDATA in render({KEY: TEXT_WITH_MARKS}), items=_items_of(frame, heads, render)
    )


def _head_of(frame: Frame, kind: str, text: str) -> ValueHead | None:
    """Return the delimiters before a value of this type; None if they are not found."""
    if not text.startswith(frame.before):
        return None
    opening, key, rest = text.removeprefix(frame.before).partition(KEY)
    closing = frame.tags.closing_of(KEY).strip()
    value = rest.partition(closing)[0] if kind != "object" else rest.rpartition(closing)[0]
    string = frame.tags.heads[0]
    if rest.startswith(string.end) and opening == string.opening:
        return string
    match = re.search(rf"(?:{WRITTEN[kind]})\s*\Z", value, re.DOTALL)
    if match is None and kind in ("object", "array"):
        match = re.search(r"(?<=>)", value)  # elements inside
    return ValueHead(opening, value[: match.start()]) if key and match else None


def _merge(heads: Mapping[str, ValueHead]) -> tuple[ValueHead, ...]:
    """Return the different delimiters, with the types of their values; without types if all are the same."""
    types: dict[ValueHead, set[str]] = {}
    for kind, head in heads.items():
        types.setdefault(head, set()).add(kind)
    if len(types) == 1:
        return tuple(types)
    return tuple(
        head._replace(types=frozenset(kinds | ({"integer"} if "number" in kinds else set())))
        for head, kinds in types.items()
    )


def _items_of(frame: Frame, heads: Mapping[str, ValueHead], render: Render) -> ItemTags | None:
    """Return the delimiters of items; None if lists are written as JSON, or as Python does."""
    array = heads.get("array", heads["string"])
    start = f"{frame.before}{array.opening}{KEY}{array.end}"

    def inside(values: Sequence[Any]) -> str:
        text = render({KEY: values})
        return text.removeprefix(start) if text.startswith(start) else ""

    single = inside([VALUE])
    opening = single.partition(VALUE)[0]
    if (
        VALUE not in single
        or not opening.lstrip().startswith(("<", "]<"))
        or INNER not in _after_head(frame, heads, render)
    ):
        return None
    two = inside([VALUE, OTHER_VALUE]).partition(VALUE)[2].partition(OTHER_VALUE)[0]
    if not two.endswith(opening):
        return None
    closing = two.removesuffix(opening)
    item_heads = {"string": ValueHead(opening)}
    for kind, value in SAMPLES.items():
        written = re.search(WRITTEN[kind], inside([value]), re.DOTALL) if kind not in ("object", "array") else None
        if written:
            item_heads[kind] = ValueHead(inside([value])[: written.start()])
        elif kind in ("object", "array"):
            inner = inside([value]).partition(VALUE)[0]
            nested = f"{heads['string'].opening}{INNER}{heads['string'].end}" if kind == "object" else opening
            if inner.endswith(nested):
                item_heads[kind] = ValueHead(inner.removesuffix(nested))
    return ItemTags(_merge(item_heads), closing)


def _after_head(frame: Frame, heads: Mapping[str, ValueHead], render: Render) -> str:
    """Return how an object is written, if its members are written like arguments."""
    head, string = heads.get("object", heads["string"]), heads["string"]
    start = f"{frame.before}{head.opening}{KEY}{head.end}"
    text = render({KEY: SAMPLES["object"]})
    rest = text.removeprefix(start).lstrip() if text.startswith(start) else ""
    return rest if rest.startswith(f"{string.opening.lstrip()}{INNER}{string.end}") else ""
