"""The command `show`."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.reader import episode_page


def show(options: Options) -> int:
    """Show episodes, or one of them."""
    chosen = episode_page.EpisodeFilter(outcome=options.outcome, step=options.step, task=options.task, last=options.last)
    place, asked = Path(options.folder), options.episode
    return episode_page.show(options.run, asked, folder=place, chosen=chosen, tokens=options.tokens, as_json=options.json)
