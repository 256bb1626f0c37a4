"""The commands that start nothing and read no run: explain | doctor, and tinker, which becomes another program."""

from __future__ import annotations

import json
from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.recipe.reference import explain_settings, json_schema
from areal_actors.run import doctor as machine

PROBLEMS = 1
"""Exit status if a run cannot start on this machine."""


def explain(options: Options) -> int:
    """Describe settings."""
    print(json.dumps(json_schema(), indent=1) if options.json_schema else explain_settings(options.settings), flush=True)
    return 0


def doctor(options: Options) -> int:
    """Examine the machine."""
    made = machine.report(machine.examine(Path(options.folder)))
    print(machine.to_json(made) if options.json else machine.to_text(made), flush=True)
    return 0 if made.ready else PROBLEMS
