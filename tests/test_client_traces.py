"""Calls in traces of the client's application: W3C headers are recorded, exported and found; bad ones are advice."""

from __future__ import annotations

import io
import json

import aiohttp
import msgspec
import pytest
from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from rich.console import Console
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, GatewayHarness, opened, root

from areal_actors.display.safe_console import SafeConsole
from areal_actors.gateway.protocols.trace_context import read_trace
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.reader.episode_page import show
from areal_actors.track.traces import SpanPlace, Traces
from areal_bus.recorded import export_log

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
async def harness():
    async with opened(GatewayHarness(GatewaySettings(recorded_baggage=("session.id",)))) as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        harness.opened = await harness.open(lease=3600)
        async with aiohttp.ClientSession(root(harness.opened), headers={"x-api-key": harness.opened.api_key}) as http:
            harness.http = http
            yield harness


async def call(harness, headers):
    body = {"model": "m", "messages": HELLO}
    async with harness.http.post("/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["id"], answer.headers


async def test_the_span_of_an_application_is_recorded_exported_and_found(harness, tmp_path):
    headers = {}
    tracer = TracerProvider().get_tracer("application")
    with tracer.start_as_current_span("answer the user") as span:
        TraceContextTextMapPropagator().inject(headers)
        carried = baggage.set_baggage("session.id", "s/1", baggage.set_baggage("email", "ann@example.com"))
        W3CBaggagePropagator().inject(headers, carried)
    at = span.get_span_context()
    place = SpanPlace(trace.format_trace_id(at.trace_id), trace.format_span_id(at.span_id))
    interaction, _ = await call(harness, headers)
    (recorded,) = harness.recorded()
    assert recorded.interaction == interaction
    assert (recorded.trace.trace, recorded.trace.span, recorded.trace.baggage) == (*place, {"session.id": "s/1"})
    await harness.trajectory(harness.opened)
    log = tmp_path / "log"
    events = list(harness.bus._log)
    await export_log(harness.bus, log)
    assert not any(b"ann@example" in envelope.body for envelope in events)
    traces = Traces()
    spans = [span for envelope in events for span in traces.receive(envelope) if span.name == "call"]
    assert [(span.links, span.attributes["areal.client.trace_id"]) for span in spans] == [((place,), place.trace)]
    shown = io.StringIO()
    assert show(str(log), place.trace, folder=tmp_path, console=SafeConsole(file=shown, width=200)) == 0
    assert f"trace {place.trace}, span {place.span}" in shown.getvalue()
    rows = io.StringIO()
    assert show(str(log), place.trace, folder=tmp_path, as_json=True, console=Console(file=rows)) == 0
    (row,) = json.loads(rows.getvalue())["interactions"]
    assert (row["trace"], row["trace_span"], json.loads(row["baggage"])) == (*place, {"session.id": "s/1"})


async def test_a_retry_in_another_span_is_the_same_call(harness):
    spans = (PARENT, PARENT.replace(SPAN, SPAN[::-1]))
    answers = [(await call(harness, {"Idempotency-Key": "one", "traceparent": parent}))[0] for parent in spans]
    assert len(set(answers)) == 1
    assert len(harness.recorded()) == 1


@pytest.mark.parametrize(
    "parent",
    ["", "nonsense", PARENT.upper(), f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"{PARENT}-x", "00-é-1-01"],
)
async def test_a_bad_header_is_listed_and_the_call_is_answered(harness, parent):
    _, headers = await call(harness, {"traceparent": parent, "tracestate": "==,", "baggage": "x" * 100})
    assert ("traceparent" in headers.get("x-areal-ignored", "")) == bool(parent)
    assert [recorded.trace for recorded in harness.recorded()] == [None]


def test_states_and_baggage_are_read_as_the_standards_have_them():
    headers = {
        "traceparent": f"01-{TRACE}-{SPAN}-00-more",
        "tracestate": "vendor=1, other@x=2",
        "baggage": "a=1%202;prop=3, b = 4 ,c,=5",
    }
    found, ignored = read_trace(headers, {"a", "b"})
    assert ignored == []
    assert msgspec.to_builtins(found) == {
        "trace": TRACE,
        "span": SPAN,
        "state": "vendor=1, other@x=2",
        "baggage": {"a": "1 2", "b": "4"},
    }
    found, ignored = read_trace({**headers, "tracestate": "A=1", "baggage": "a=" + "1" * 9000}, {"a"})
    assert (found.state, found.baggage, ignored) == ("", {}, ["tracestate", "baggage"])
