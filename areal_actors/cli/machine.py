"""The command `doctor`."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.run import doctor as machine

PROBLEMS = 1
"""Exit status if a run cannot start on this machine."""


def doctor(options: Options) -> int:
    """Examine the machine."""
    report = machine.report(machine.examine(Path(options.folder)))
    print(machine.to_json(report) if options.json else machine.to_text(report), flush=True)
    return 0 if report.ready else PROBLEMS
