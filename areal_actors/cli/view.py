"""The command `view`."""

from __future__ import annotations

from areal_actors.cli.arguments import Options
from areal_actors.run.preflight import report_clean_up
from areal_actors.web import command as web_page
from areal_actors.web.command import PageOptions


def view(options: Options) -> int:
    """Serve the page of a run."""
    report_clean_up(options.folder)
    page = PageOptions(host=options.host, port=options.port, what_if=options.what_if)
    return web_page.view(options.run, options.folder, page)
