"""The server of a run's page: the tables of the index, details, and notices of changes. It only reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web

from areal_actors.core.errors import SetupError
from areal_actors.core.local_hosts import is_loopback, parse_number
from areal_actors.display.recorded_state import recorded_state
from areal_actors.display.summary import read_throughputs, summary_rows
from areal_actors.display.throughput import busy_share, tokens_per_second
from areal_actors.web.access import Access, add_headers
from areal_actors.web.commands import RunCommands
from areal_actors.web.details import LogDetails
from areal_actors.web.headline import Headline
from areal_actors.web.rows import EpisodeRow
from areal_actors.web.source import READING, LogSource
from areal_actors.web.tables import TABLES
from areal_actors.web.what_if_curves import WhatIfCurves

STATIC = Path(__file__).parent / "static"
NOTICE_SECONDS = 0.25
"""Shortest time between two notices to a browser: it asks for all that changed meanwhile at once."""
KEEP_ALIVE_SECONDS = 15.0
STUCK_SECONDS = 60.0
"""Time after which a browser that does not take a notice is disconnected."""
MAX_STREAMS = 64
"""Browsers that receive notices at the same time; further ones are refused, and ask again."""
WINDOW_SECONDS = 30.0
"""Window of throughput and busy shares, before the latest telemetry."""
MAX_EVENTS = 200
SLICE_BYTES = 1 << 16
"""Bytes of an answer that are handed to a connection at once."""

ASKED_BY = "X-Requested-With"
"""Header of requests that start work; a browser lets no page of another host send it."""
ROUTES = (
    ("GET", "", "page"),
    ("GET", "api/run", "run"),
    ("GET", "api/rows", "rows"),
    ("GET", "api/telemetry", "telemetry"),
    ("GET", "api/changes", "changes"),
    ("GET", "api/episode/{id:[0-9]+}", "episode"),
    ("GET", "api/episode/{id:[0-9]+}/trained", "answer_trace"),
    ("GET", "api/group/{group}", "group"),
    ("GET", "api/events", "events"),
    ("GET", "api/event/{position:[0-9]+}", "event"),
    ("GET", "api/summary", "summary"),
    ("GET", "api/why", "why"),
    ("POST", "api/what-if", "what_if"),
)
"""Method, path below the page's own, and function of `PageServer`."""

_ENCODER = msgspec.json.Encoder()


class PageServer:
    """Answers the requests of browsers."""

    def __init__(self, source: LogSource, name: str, what_ifs: Sequence[WhatIfCurves] = ()) -> None:
        self.source, self.name = source, name
        self._what_ifs = tuple(what_ifs)
        self._details, self._commands = LogDetails(source), RunCommands(source)
        self._headline = Headline()
        self._whole: tuple[dict[str, Any], bytes] = ({}, b"")
        """All rows, encoded, and the state of the log then."""
        self.streams = 0
        """Browsers that receive notices."""

    def routes(self) -> list[web.AbstractRouteDef]:
        """Returns the routes."""
        routes = [web.route(method, f"/{path}", getattr(self, name)) for method, path, name in ROUTES]
        return [*routes, web.static("/static", STATIC)]

    def head(self) -> dict[str, Any]:
        """Returns how far the log was read."""
        source, progress, facts = self.source, self.source.history.progress, self.source.tables.facts()
        return {
            "last": progress.last,
            "first": progress.first,
            "at": source.tables.seconds(progress.now),
            "state": source.state,
            "total": max(source.total, progress.last),
            "finished": facts.finished is not None,
            "error": facts.finished.error if facts.finished else "",
            "notice": source.notice or (source.history.rebuilt if source.state == READING else ""),
            "headline": self._headline.sentences(source.history),
        }

    async def page(self, _: web.Request) -> web.FileResponse:
        """The page itself."""
        return web.FileResponse(STATIC / "index.html")

    async def run(self, _: web.Request) -> web.Response:
        """The part that seldom changes: name, recipe, columns of the tables, and the curves laid over."""
        progress, recipe = self.source.history.progress, self.source.tables.facts().recipe or self.source.recipe
        columns = {name: table.__struct_fields__ for name, table in TABLES.items()}
        facts = {"name": progress.run or self.name, "began": progress.began, "recipe": recipe, "columns": columns}
        return _json({**facts, "what_ifs": self._what_ifs, "head": self.head()})

    async def rows(self, request: web.Request) -> web.StreamResponse:
        """Rows that changed after an event; sent in slices, so that browsers that hang share one encoded answer."""
        if after := _number(request, "after", 0):
            tables = self.source.tables.rows_changed_after(after)  # before the head, which has facts of the same events
            body = _ENCODER.encode({"head": self.head(), "tables": tables})
        else:
            body = self._all_rows()
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        with suppress(ConnectionError):  # the browser has gone
            await response.prepare(request)
            for start in range(0, len(body), SLICE_BYTES):
                await asyncio.wait_for(response.write(memoryview(body)[start : start + SLICE_BYTES]), STUCK_SECONDS)
        return response

    def _all_rows(self) -> bytes:
        if self._whole[0] != self.head():
            tables = self.source.tables.rows_changed_after(0)
            self._whole = (self.head(), _ENCODER.encode({"head": self.head(), "tables": tables}))
        return self._whole[1]

    async def telemetry(self, _: web.Request) -> web.Response:
        """Heartbeats of a live run's actors, and throughput of its engines."""
        state, began = self.source.telemetry, self.source.history.progress.began
        beats = [
            {
                "actor": actor,
                "process": beat.process,
                "at": state.beaten_at[actor] - began,
                "handling": beat.handling,
                "waits": [{"name": wait.name, "since": wait.since - began} for wait in beat.waits],
                "status": beat.status,
                "cpu_seconds": beat.cpu_seconds,
                "peak_memory_bytes": beat.peak_memory_bytes,
            }
            for actor, beat in sorted(state.beats.items())
        ]
        return _json(
            {"beats": beats, "now": state.now - began, "live": self.source.state == "live", "engines": self._engines()}
        )

    def _engines(self) -> dict[str, dict[str, float]]:
        state = self.source.telemetry
        start, engines = max(state.now - WINDOW_SECONDS, min(state.telemetry_since, state.now)), {}
        for side in ("generation", "training"):
            recent = [
                throughput
                for throughput in state.throughputs
                if throughput.side == side and throughput.started + throughput.seconds > start
            ]
            if recent and start < state.now:
                engines[side] = {
                    "tokens_per_second": tokens_per_second(recent),
                    "busy_share": busy_share(recent, (start, state.now)),
                }
        return engines

    async def changes(self, request: web.Request) -> web.StreamResponse:
        """Notices as server-sent events, each with the latest event.

        Never a queue, so a browser that hangs holds one notice.
        """
        if self.streams >= MAX_STREAMS:
            return web.Response(status=503, text=f"{MAX_STREAMS} browsers show this page already; close one.\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.streams += 1
        try:
            await response.prepare(request)
            sent, written = b"", 0.0
            while True:
                head = _ENCODER.encode({**self.head(), "telemetry": self.source.telemetry_count})
                if head != sent or time.monotonic() - written > KEEP_ALIVE_SECONDS:
                    await asyncio.wait_for(response.write(b"data: " + head + b"\n\n"), STUCK_SECONDS)
                    sent, written = head, time.monotonic()
                await asyncio.sleep(NOTICE_SECONDS)
        except (ConnectionError, TimeoutError):
            return response
        finally:
            self.streams -= 1

    async def episode(self, request: web.Request) -> web.Response:
        """An attempt at an episode with its tokens."""
        return _json(await self._details.episode(self._row(request)))

    async def answer_trace(self, request: web.Request) -> web.Response:
        """Masks and advantages of an attempt."""
        row = self._row(request)

        async def answer() -> bytes:
            if (trace := await self._details.trace(row)) is not None:
                return _ENCODER.encode(trace)
            return await self._commands.trace(row.name, row.attempt)

        return await _answered(answer())

    async def summary(self, _: web.Request) -> web.Response:
        """The summary of the run, with answers to held-out tasks."""
        history, place = self.source.history, self.source.place
        history.flush()
        throughputs = read_throughputs(place.metrics) if place else list(self.source.telemetry.throughputs)
        rows = summary_rows(recorded_state(history), throughputs, missing=self.source.notice)
        return _json({"last": history.progress.last, "rows": rows, "answers": await self._details.answers()})

    async def why(self, _: web.Request) -> web.Response:
        """The limit of the run, with figures and advice."""
        return await _answered(self._commands.explain_limit())

    async def what_if(self, request: web.Request) -> web.Response:
        """Steps that other settings would have trained from the recorded episodes."""
        if ASKED_BY not in request.headers:
            raise web.HTTPForbidden(text=f"Only this page asks for this, with the header {ASKED_BY}.\n")
        try:
            settings = msgspec.json.decode(await request.read(), type=list[str])
        except msgspec.MsgspecError as error:
            raise web.HTTPBadRequest(text=f"Send a list of settings as KEY=VALUE: {error}.\n") from None
        return await _answered(self._commands.compare_settings(settings))

    def _row(self, request: web.Request) -> EpisodeRow:
        number = _number_in(request.match_info["id"], "the number of an attempt")
        rows = self.source.tables.episodes("id = ?", number + 1)
        if not rows:
            count = self.source.history.value("SELECT count(*) FROM attempt")
            raise web.HTTPNotFound(text=f"The log has {count} attempts at episodes so far; found number {number}.\n")
        return rows[0]

    async def group(self, request: web.Request) -> web.Response:
        """The answers of a group side by side."""
        group = request.match_info["group"]
        rows = self.source.tables.episodes("group_ = ?", group)
        return _json({"group": group, "episodes": await self._details.group(rows)})

    async def events(self, request: web.Request) -> web.Response:
        """Events that match a search."""
        last = self.source.history.progress.last
        before = _number(request, "before", last + 1)
        limit = min(_number(request, "limit", 100), MAX_EVENTS)
        wanted = {name: request.query.get(name, "") for name in ("subject", "text")}
        return _json(await self._details.search(before=min(before, last + 1), limit=limit, **wanted))

    async def event(self, request: web.Request) -> web.Response:
        """One event with its message."""
        event = await self._details.event(_number_in(request.match_info["position"], "the number of an event"))
        return _json(event) if event else _json({"error": "the log does not have this event"}, status=404)

    async def wait_until_ended(self) -> None:
        """Wait until the processes of cancelled requests have ended."""
        await self._commands.wait_until_ended()


class Pages(Protocol):
    """The page of a run, or the pages of a folder."""

    def routes(self) -> list[web.AbstractRouteDef]:
        """Returns the routes."""
        ...

    async def wait_until_ended(self) -> None:
        """Wait until the processes of cancelled requests have ended."""
        ...


@asynccontextmanager
async def serving_page(server: Pages, access: Access, host: str, port: int) -> AsyncIterator[str]:
    """Serve the page; yields its URL.

    Raises:
        SetupError: the address cannot be used.
    """
    app = web.Application(middlewares=[access.middleware], client_max_size=1 << 16)
    app.on_response_prepare.append(add_headers)
    app.add_routes(server.routes())
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True
    )  # a closed browser gives its stream back
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            reason = f"the page cannot be served at {host}, port {port} ({error.strerror})"
            raise SetupError(f"{reason}; choose another with --host and --port, or --port 0 for a free one") from error
        shown = f"[{host}]" if ":" in host else host
        secret = "" if is_loopback(host) else f"?token={access.token}"
        yield f"http://{shown}:{runner.addresses[0][1]}/{secret}"
    finally:
        await runner.cleanup()
        await server.wait_until_ended()


def _number(request: web.Request, name: str, otherwise: int) -> int:
    return _number_in(text, name) if (text := request.query.get(name, "")) else otherwise


def _number_in(text: str, name: str) -> int:
    try:
        return parse_number(text, name)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{error}.\n") from None


async def _answered(answer: Coroutine[Any, Any, bytes]) -> web.Response:
    """Returns a JSON answer, or why there is none."""
    try:
        return web.Response(body=await answer, content_type="application/json")
    except SetupError as error:
        return _json({"error": str(error)}, status=409)


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=_ENCODER.encode(value), content_type="application/json", status=status)
