"""The command `view --terminal`."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.display import monitor as monitors
from areal_actors.run.preflight import report_clean_up


def monitor(options: Options) -> int:
    """Watch a run."""
    report_clean_up(options.folder)
    place, asked = options.folder, options.prometheus
    return monitors.attach(
        options.run, folder=place, subjects=options.subjects, bus=options.bus, as_json=options.as_json, prometheus=asked
    )
