"""The command `show`."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.reader import episode_page


def show(options: Options) -> int:
    """Show episodes, or one of them."""
    chosen = episode_page.EpisodeFilter(
        outcome=options.outcome, step=options.step, task=options.task, last=options.last
    )
    folder, tokens, as_json = options.folder, options.tokens, options.as_json
    return episode_page.show(options.run, options.episode, folder=folder, chosen=chosen, tokens=tokens, as_json=as_json)
