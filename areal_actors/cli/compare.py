"""The command `compare`, by itself because it draws curves."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError
from areal_actors.reader import comparison


def compare(options: Options) -> int:
    """Compare runs."""
    if len(options.words) < 2:
        raise RecipeError(
            f"found {len(options.words)} run; name two or more, as in `{COMMAND} compare A B` (`{COMMAND} runs` lists"
            " them)"
        )
    metrics, plot = options.metric, options.plot
    return comparison.compare(options.words, folder=options.folder, metrics=metrics, plot=plot, as_json=options.as_json)
