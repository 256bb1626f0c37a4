"""`areal-actors view`: serve the page of a run until Ctrl-C.

It only reads, in a process of its own.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.folder.connections import address_in, find_live
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.reader.run_files import run_folder
from areal_actors.web.access import Access
from areal_actors.web.run_list import list_server
from areal_actors.web.server import Pages, PageServer, serving_page
from areal_actors.web.source import LogSource
from areal_actors.web.what_if_curves import WhatIfCurves, read_curves
from areal_bus.errors import RecordingDamaged
from areal_bus.recorded import LogCopy, read_header

EVERY_ADDRESS = ("0.0.0.0", "::")


class PageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the page, and curves laid over."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    what_if: Sequence[Path] = ()
    """Files with the output of `areal-actors what-if --json`."""


def view(run: str, folder: Path, options: PageOptions) -> int:
    """Serve the page of a live, finished or exported run until Ctrl-C; returns the exit status.

    Without a name, or of a folder with runs, it is the list of its runs, from which each opens; with curves to be laid
    over, the latest run.

    Raises:
        SetupError: there is no such run, the file is no log, or the address cannot be used.
    """
    path = Path(run)
    if not options.what_if and (not run or _has_runs(path)):
        return _serve_list(path if run else folder, options)
    if path.is_file():
        return _serve(_header_name(path), options, file=path)
    place = run_folder(run, folder)
    if not place.live_supervisor() and not (place.nats.is_dir() and any(place.nats.iterdir())):
        raise SetupError(f"{place.path} holds no log; name a run that was made here, or an exported log")
    return _serve(place.path.name, options, place=place)


def monitor_page(run: str, folder: Path, bus: Path | None, options: PageOptions) -> int:
    """Serve the page of a live run until Ctrl-C, also after its end; returns the exit status.

    Raises:
        SetupError: no such run is live, or the address cannot be used.
    """
    if bus is not None:
        address = address_in(bus)
        return _serve(address.run, options, bus=address)
    place = find_live(run, folder)
    return _serve(place.path.name, options, place=place)


def _has_runs(path: Path) -> bool:
    return not (path / "recipe.json").exists() and any(path.glob("*/recipe.json"))


def _serve_list(folder: Path, options: PageOptions) -> int:
    server = list_server(folder)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_until_ended(server, f"the runs of {server.folder}", options))
    return 0


def _header_name(path: Path) -> str:
    try:
        header = read_header(path)
    except RecordingDamaged as error:
        raise SetupError(
            f"{path} cannot be read as an exported log: {error}; `{COMMAND} export RUN FILE` writes one"
        ) from error
    if header.holds != "log":
        raise SetupError(f"{path} is a tape of one actor; `{COMMAND} export RUN FILE` writes the log of a run")
    return header.run


def _serve(
    name: str,
    options: PageOptions,
    *,
    file: Path | None = None,
    place: RunFolder | None = None,
    bus: ServerAddress | None = None,
) -> int:
    curves = [read_curves(path) for path in options.what_if]
    with tempfile.TemporaryDirectory(prefix="areal-page-") as temporary, suppress(KeyboardInterrupt):
        copy = LogCopy(Path(temporary) / "run.log", name)
        try:
            asyncio.run(_serve_page(LogSource(copy, file=file, place=place, bus=bus), name, options, curves))
        finally:
            copy.close()
    return 0


async def _serve_page(source: LogSource, name: str, options: PageOptions, curves: Sequence[WhatIfCurves]) -> None:
    await _serve_until_ended(PageServer(source, name, curves), f"the page of run '{name}'", options, source.read)


async def _serve_until_ended(
    pages: Pages, subject: str, options: PageOptions, work: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> None:
    """Serve pages until a signal ends them, while `work` runs."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serving_page(pages, Access(options.host), options.host, options.port) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        elsewhere = (
            f"; on another machine write this one's name instead of {options.host}"
            if options.host in EVERY_ADDRESS
            else ""
        )
        runs = "the run is" if work is not None else "runs are"
        sys.stderr.write(f"{subject}; Ctrl-C ends it, {runs} not affected{elsewhere}\n")
        tasks = [asyncio.create_task(ended.wait()), *([asyncio.create_task(work())] if work is not None else [])]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if len(tasks) > 1 and tasks[1].done():
                await tasks[1]  # an error of the program is not hidden
                await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
