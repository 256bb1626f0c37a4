"""The command `view`: the page of a run."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.run.preflight import report_clean_up
from areal_actors.web import command as web_page
from areal_actors.web.command import PageOptions


def view(options: Options) -> int:
    """Serve the page of a run."""
    report_clean_up(options.folder)
    page = PageOptions(host=options.host, port=options.port, what_if=options.what_if)
    if options.bus:
        return web_page.monitor_page(options.run, options.folder, options.bus, page)
    return web_page.view(options.run, options.folder, page)
