"""The commands that read logs: monitor | export | audit."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.run import auditing
from areal_actors.run import monitor as monitors
from areal_actors.run.preflight import report_clean_up


def monitor(options: Options) -> int:
    """Watch a run."""
    report_clean_up(Path(options.folder))
    place, asked = Path(options.folder), options.prometheus
    return monitors.attach(options.run, folder=place, subjects=options.subjects, bus=options.bus, as_json=options.json, prometheus=asked)


def export(options: Options) -> int:
    """Write the log to a file."""
    return monitors.export(options.run, Path(options.destination), folder=Path(options.folder))


def audit(options: Options) -> int:
    """Check a log."""
    return auditing.audit(options.run, folder=Path(options.folder), recompute=options.recompute)
