"""Headers by which a client's call belongs to a trace of its application: W3C Trace Context, and Baggage.

They are advice: a header that is not valid is listed as ignored, and the call is answered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from urllib.parse import unquote

from areal_actors.messages import ClientTrace

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
STATE = re.compile(r"[a-z0-9][\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,256}")
LONGEST_STATE = 512
LONGEST_BAGGAGE = 8192
LONGEST_VALUE = 256
INVALID_VERSION = "ff"


def read_trace(headers: Mapping[str, str], recorded: Collection[str]) -> tuple[ClientTrace | None, list[str]]:
    """Returns the trace of a call, None if it has none, and the names of headers that are not valid.

    Args:
        headers: of the request.
        recorded: names of the entries of the baggage that are recorded; the others may be about people.
    """
    parent = headers.get(TRACEPARENT, "").strip()
    if not parent:
        return None, []
    match = PARENT.fullmatch(parent)
    if match is None or not is_valid(match):
        return None, [TRACEPARENT]
    state, ignored = headers.get(TRACESTATE, "").strip(), list[str]()
    entries = [entry.strip() for entry in state.split(",") if entry.strip()]
    if len(state) > LONGEST_STATE or not all(map(STATE.fullmatch, entries)):
        state, ignored = "", [TRACESTATE]
    carried = headers.get(BAGGAGE, "")
    if len(carried) > LONGEST_BAGGAGE:
        carried, ignored = "", [*ignored, BAGGAGE]
    baggage = {name: value for name, value in _entries(carried) if name in recorded}
    return ClientTrace(trace=match[2], span=match[3], state=state, baggage=baggage), ignored


def is_valid(parent: re.Match[str]) -> bool:
    """Returns True unless a version forbids this form, or an id is all zeros."""
    version, trace, span, rest = parent.groups()
    return version != INVALID_VERSION and not (version == "00" and rest) and bool(int(trace, 16) and int(span, 16))


def _entries(baggage: str) -> list[tuple[str, str]]:
    pairs = [entry.partition(";")[0].partition("=") for entry in baggage.split(",")]
    return [(name.strip(), unquote(value.strip())[:LONGEST_VALUE]) for name, mark, value in pairs if mark]
