"""Traces of applications whose calls a gateway answers."""

from __future__ import annotations

from areal_actors.core.values import Value


class ClientTrace(Value):
    """Span of the client's application in which a call was made (W3C Trace Context)."""

    trace: str
    """Id of the trace, 32 hexadecimal digits."""
    span: str
    """Id of the span, 16 hexadecimal digits."""
    state: str = ""
    """Header `tracestate`, as it came."""
    baggage: dict[str, str] = {}
    """Entries of the header `baggage` that `gateway.recorded_baggage` names."""
