"""`areal-actors export RUN --otlp URL`.

It sends the traces of a live, finished or exported run to an OpenTelemetry collector, over HTTP.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from areal_actors.core.errors import SetupError
from areal_actors.folder.connections import open_log
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import RunFinished
from areal_actors.reader.run_files import run_folder
from areal_actors.track.traces import REQUESTS, Span, SpanPlace, Traces
from areal_bus.base import Bus
from areal_bus.recorded import read_log

PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
MODULES = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
TRACES_PATH = "/v1/traces"
BATCH_SPANS = 512
SEND_SECONDS = 2.0
"""Time between two requests for a live run."""
REQUEST_SECONDS = 0.5
"""Time by which events of a live run are handled later: the requests before them arrive by another subscription."""
POLL_SECONDS = 0.5
NANOSECONDS = 10**9


def send_traces(run: str, url: str, *, folder: Path, once: bool = False) -> int:
    """Send a run's traces, and go on until it ends; returns the exit status.

    Args:
        run: name, folder or exported log; empty for the latest run.
        url: the collector, as in `http://localhost:4318`; without a path, `/v1/traces` is added.
        folder: where runs are written.
        once: send what is there, and end.

    Raises:
        SetupError: there is no such run, OpenTelemetry is not installed, or the collector does not take the spans.
        BusError: the log cannot be read.
    """
    sender = SpanSender(url)
    if Path(run).is_file():
        traces = Traces()
        for envelope in read_log(Path(run)):
            sender.add(traces.receive(envelope))
    else:
        asyncio.run(_send_folder(run_folder(run, folder), sender, once=once))
    sender.flush()
    sys.stdout.write(f"{sender.sent:,} spans sent to {sender.url}\n")
    return 0


async def _send_folder(place: RunFolder, sender: SpanSender, *, once: bool) -> None:
    async with open_log(place) as bus:
        traces, follows = Traces(), bool(place.live_supervisor()) and not once
        last = (await bus.span()).last
        reading = asyncio.create_task(_read(bus, traces, sender, last if follows else None))
        tasks = [reading]
        if follows:
            tasks += [
                asyncio.create_task(beside)
                for beside in (_note_requests(bus, traces), _send(sender), _wait_gone(place))
            ]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read(bus: Bus, traces: Traces, sender: SpanSender, last: int | None) -> None:
    """Read the log; from the event after `last` it is that of a live run, and read until the run is finished."""
    async for envelope in bus.log(follow=last is not None):
        is_new = last is not None and envelope.sequence > last
        if is_new:
            await asyncio.sleep(min(max(envelope.time + REQUEST_SECONDS - time.time(), 0.0), REQUEST_SECONDS))
        sender.add(traces.receive(envelope))
        if not is_new:
            await sender.flush_full()
        elif envelope.subject == RunFinished.subject:
            return


async def _note_requests(bus: Bus, traces: Traces) -> None:
    async for envelope in bus.watch(">"):
        if envelope.subject in REQUESTS:
            traces.begin(envelope)


async def _send(sender: SpanSender) -> None:
    while True:
        await asyncio.sleep(SEND_SECONDS)
        await asyncio.to_thread(sender.flush)


async def _wait_gone(place: RunFolder) -> None:
    while place.live_supervisor():  # noqa: ASYNC110 - it is another process, which publishes nothing when it is killed
        await asyncio.sleep(POLL_SECONDS)
    await asyncio.sleep(SEND_SECONDS)


class SpanSender:
    """Collects spans, and sends them in batches."""

    def __init__(self, url: str) -> None:
        self.url = _endpoint(url)
        self.sent = 0
        self._spans: deque[Span] = deque()
        self._sending = threading.Lock()
        try:
            missing = [name for name in MODULES if find_spec(name) is None]
        except ModuleNotFoundError:
            missing = list(MODULES)
        if missing:
            raise SetupError(f"--otlp needs OpenTelemetry, which is not installed here; `pip install {PACKAGES}`")
        self._api = importlib.import_module("opentelemetry.trace")
        self._sdk = importlib.import_module("opentelemetry.sdk.trace")
        self._done = importlib.import_module("opentelemetry.sdk.trace.export").SpanExportResult.SUCCESS
        resources = importlib.import_module("opentelemetry.sdk.resources").Resource
        self._resource = resources.create(
            {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "areal-actors"}
        )
        self._exporter = importlib.import_module(
            "opentelemetry.exporter.otlp.proto.http.trace_exporter"
        ).OTLPSpanExporter(self.url)

    def add(self, spans: Iterable[Span]) -> None:
        """Keep spans to be sent."""
        self._spans.extend(spans)

    async def flush_full(self) -> None:
        """Send the spans if they are enough for a request."""
        if len(self._spans) >= BATCH_SPANS:
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Send all spans.

        Raises:
            SetupError: the collector did not take them, after the retries of OpenTelemetry's exporter.
        """
        with self._sending:
            while self._spans:
                batch = [self._spans.popleft() for _ in range(min(BATCH_SPANS, len(self._spans)))]
                if self._exporter.export([self._readable(span) for span in batch]) is not self._done:
                    reason = (
                        f"the collector at {self.url} did not take {len(batch)} spans, after {self.sent:,}; its answer"
                        " is above"
                    )
                    raise SetupError(f"{reason}; start it, or name another: --otlp http://HOST:4318")
                self.sent += len(batch)

    def _readable(self, span: Span) -> Any:
        failed = self._api.Status(self._api.StatusCode.ERROR, span.error) if span.error else self._api.Status()
        return self._sdk.ReadableSpan(
            span.name,
            context=self._context(span.place),
            parent=self._context(SpanPlace(span.place.trace, span.parent)) if span.parent else None,
            resource=self._resource,
            attributes=span.attributes,
            links=[self._api.Link(self._context(place)) for place in span.links],
            status=failed,
            start_time=int(span.begin * NANOSECONDS),
            end_time=int(span.end * NANOSECONDS),
        )

    def _context(self, place: SpanPlace) -> Any:
        sampled = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        return self._api.SpanContext(int(place.trace, 16), int(place.span, 16), is_remote=False, trace_flags=sampled)


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SetupError(
            f"--otlp: found {url!r}; write the address of a collector for OTLP over HTTP, as in http://localhost:4318"
        )
    return url if parts.path.strip("/") else f"{url.rstrip('/')}{TRACES_PATH}"
