"""The pages of a folder: the list of its runs, several of them side by side, and the page of each.

A run's page is opened when it is asked for.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.display.held_out_change import change_of
from areal_actors.display.limit import limit_sentence
from areal_actors.folder.run_folder import RunFolder
from areal_actors.reader.comparison import choose_metrics, differences, list_results, name_runs
from areal_actors.reader.listing import facts
from areal_actors.reader.run_files import RunFiles, read_run_files
from areal_actors.web.server import ROUTES, STATIC, PageServer
from areal_actors.web.source import LogSource
from areal_bus.recorded import LogCopy

MAX_OPEN = 8
"""Pages of runs that are open at once; of those that no browser follows, the one asked for longest ago is closed."""
MAX_COMPARED = 6
Stamp = tuple[int, int]


class OpenPage:
    """The page of a run, which is read in a task."""

    def __init__(self, place: RunFolder) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="areal-page-")
        self._copy = LogCopy(Path(self._temporary.name) / "run.log", place.path.name)
        source = LogSource(self._copy, place=place)
        self.server = PageServer(source, place.path.name)
        self._reading = asyncio.create_task(source.read())

    async def close(self) -> None:
        """End reading, and remove the copy of the log."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.server.wait_until_ended()
        self._copy.close()
        self._temporary.cleanup()


class RunListServer:
    """Answers the requests of browsers about the runs of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._open: dict[str, OpenPage] = {}
        self._files: dict[str, tuple[Stamp, RunFiles]] = {}

    def routes(self) -> list[web.AbstractRouteDef]:
        """Returns the routes."""
        pages = [web.route(method, f"/run/{{run}}/{path}", self._page(name)) for method, path, name in ROUTES]
        own = [web.get("/", self.page), web.get("/api/runs", self.runs), web.get("/api/compare", self.compare)]
        return [*own, *pages, web.static("/static", STATIC)]

    async def page(self, _: web.Request) -> web.FileResponse:
        """The list itself."""
        return web.FileResponse(STATIC / "runs.html")

    async def runs(self, _: web.Request) -> web.Response:
        """All runs of the folder, the latest first."""
        rows = await asyncio.to_thread(lambda: [self._row(name) for name in self._names()])
        rows.sort(key=lambda row: -(row["started"] or 0.0))
        return _json({"folder": str(self.folder), "runs": rows})

    async def compare(self, request: web.Request) -> web.Response:
        """Settings that differ between runs, their results, and their curves."""
        names = request.query.getall("run", [])[:MAX_COMPARED]
        for name in names:
            self._place(name)
        try:
            return _json(await asyncio.to_thread(self._compare, names))
        except SetupError as error:
            raise web.HTTPConflict(text=f"{error}\n") from None

    def _page(self, name: str) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            response: web.StreamResponse = await getattr(await self._server(request.match_info["run"]), name)(request)
            return response

        return answer

    async def _server(self, run: str) -> PageServer:
        """Returns the page of a run."""
        place = self._place(run)
        page = self._open.pop(run, None) or OpenPage(place)
        self._open[run] = page  # the last is the one that was asked for last
        for name in [name for name, other in self._open.items() if not other.server.streams and name != run]:
            if len(self._open) <= MAX_OPEN:
                break
            await self._open.pop(name).close()
        return page.server

    def _place(self, run: str) -> RunFolder:
        """Returns the folder of a run of the list."""
        if run not in self._names():
            raise web.HTTPNotFound(text=f"{self.folder} has no run '{run}'; the list shows those that it has.\n")
        return RunFolder(self.folder / run)

    def _names(self) -> list[str]:
        return [recipe.parent.name for recipe in self.folder.glob("*/recipe.json")]

    def _row(self, name: str) -> dict[str, Any]:
        try:
            run = self._read(name)
        except SetupError as error:
            return {"run": name, "status": "unreadable", "error": str(error), "started": None}
        change = change_of(run.state, "sampled") or change_of(run.state, "greedy")
        return facts(run) | {"change": change.describe() if change else "", "limit": limit_sentence(run.state)}

    def _read(self, name: str) -> RunFiles:
        """Returns the state of a run, read again if its file has grown."""
        place = RunFolder(self.folder / name)
        stamp = (0, 0)
        with suppress(OSError):
            status = place.metrics.stat()
            stamp = status.st_size, status.st_mtime_ns
        known = self._files.get(name)
        if known is None or known[0] != stamp:
            known = self._files[name] = stamp, read_run_files(place)
        return known[1]

    def _compare(self, names: Sequence[str]) -> dict[str, Any]:
        files = [self._read(name) for name in names]
        named = name_runs(files)
        return {
            "runs": named,
            "recipe": differences([run.recipe for run in files]),
            "results": list(list_results(files)),
            "curves": {name: [_points(run, name) for run in files] for name in choose_metrics(files)},
            "held_out": {
                mode: [[(one.weight_version, one.accuracy) for one in run.state.accuracy(mode)] for run in files]
                for mode in ("sampled", "greedy")
            },
        }

    async def wait_until_ended(self) -> None:
        """Close the pages of all runs."""
        while self._open:
            await self._open.popitem()[1].close()


def list_server(folder: Path) -> RunListServer:
    """Returns the server of a folder's runs.

    Raises:
        SetupError: it has none.
    """
    if not any(folder.absolute().glob("*/recipe.json")):
        raise SetupError(
            f"no run in {folder.absolute()}; start one with `{COMMAND} run RECIPE`, or name another folder: --folder"
            " PATH"
        )
    return RunListServer(folder)


def _points(run: RunFiles, metric: str) -> list[tuple[int, float]]:
    return [(step.number, step.metrics[metric]) for step in run.state.steps if metric in step.metrics]


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
