"""The command that replays logs: replay."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options, run_and_settings
from areal_actors.core.errors import SetupError
from areal_actors.replay import command


def replay(options: Options) -> int:
    """Replay a log and compare."""
    run, settings = run_and_settings(options.words)
    folder = Path(options.folder)
    if not options.trainer:
        return command.replay(run, settings, folder=folder, actors=options.actor, every=options.all, as_json=options.json)
    if settings or options.actor or options.json:
        raise SetupError("--trainer compares checksums, so it takes no settings, no --actor and no --json")
    return command.replay_trainer(run, folder=folder)
