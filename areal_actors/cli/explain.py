"""The command `explain`."""

from __future__ import annotations

import json

from areal_actors.cli.command import Options
from areal_actors.recipe.reference import explain_settings, json_schema


def explain(options: Options) -> int:
    """Describe settings."""
    print(
        json.dumps(json_schema(), indent=1) if options.json_schema else explain_settings(options.settings), flush=True
    )
    return 0
