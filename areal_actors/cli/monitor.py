"""The command `monitor`."""

from __future__ import annotations

from areal_actors.cli.arguments import Options
from areal_actors.core.errors import SetupError
from areal_actors.display import monitor as monitors
from areal_actors.run.preflight import report_clean_up
from areal_actors.web import command as web_page
from areal_actors.web.command import PageOptions


def monitor(options: Options) -> int:
    """Watch a run."""
    report_clean_up(options.folder)
    if options.web:
        return _page_of_live_run(options)
    place, asked = options.folder, options.prometheus
    return monitors.attach(
        options.run, folder=place, subjects=options.subjects, bus=options.bus, as_json=options.as_json, prometheus=asked
    )


def _page_of_live_run(options: Options) -> int:
    if options.subjects or options.as_json or options.prometheus:
        raise SetupError(
            "--web serves a page instead of printing: leave out subjects, --json and --prometheus, or start a second"
            " monitor"
        )
    page = PageOptions(host=options.host, port=options.port)
    return web_page.monitor_page(options.run, options.folder, options.bus, page)
