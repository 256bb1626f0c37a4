"""The commands that read logs: monitor | view | export | audit."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.core.errors import SetupError
from areal_actors.core.extras import TRAIN, require_extra
from areal_actors.run import auditing
from areal_actors.run import monitor as monitors
from areal_actors.run.preflight import report_clean_up
from areal_actors.web import command as web_page
from areal_actors.web.command import PageOptions


def monitor(options: Options) -> int:
    """Watch a run."""
    report_clean_up(Path(options.folder))
    if options.web:
        return _page_of_live_run(options)
    place, asked = Path(options.folder), options.prometheus
    return monitors.attach(options.run, folder=place, subjects=options.subjects, bus=options.bus, as_json=options.json, prometheus=asked)


def view(options: Options) -> int:
    """Serve the page of a run."""
    report_clean_up(Path(options.folder))
    page = PageOptions(host=options.host, port=options.port, what_if=options.what_if)
    return web_page.view(options.run, Path(options.folder), page)


def _page_of_live_run(options: Options) -> int:
    if options.subjects or options.json or options.prometheus:
        raise SetupError("--web serves a page instead of printing: leave out subjects, --json and --prometheus, or start a second monitor")
    page = PageOptions(host=options.host, port=options.port)
    return web_page.monitor_page(options.run, Path(options.folder), options.bus, page)


def export(options: Options) -> int:
    """Write the log to a file."""
    return monitors.export(options.run, Path(options.destination), folder=Path(options.folder))


def audit(options: Options) -> int:
    """Check a log."""
    if options.recompute:
        require_extra(TRAIN, "--recompute")
    return auditing.audit(options.run, folder=Path(options.folder), recompute=options.recompute)
