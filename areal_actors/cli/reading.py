"""The commands that read runs: monitor | runs | show | export | audit | replay | state | why."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options, run_and_settings
from areal_actors.core.errors import SetupError
from areal_actors.reader import episode_page, listing
from areal_actors.replay import command as replaying
from areal_actors.replay import state as moments
from areal_actors.replay import why as reasons
from areal_actors.run import auditing
from areal_actors.run import monitor as monitors
from areal_actors.run.logs import log_to_terminal
from areal_actors.run.preflight import report_clean_up


def monitor(options: Options) -> int:
    """Watch a run."""
    report_clean_up(Path(options.folder))
    place, asked = Path(options.folder), options.prometheus
    return monitors.attach(options.run, folder=place, subjects=options.subjects, bus=options.bus, as_json=options.json, prometheus=asked)


def runs(options: Options) -> int:
    """List runs."""
    return listing.list_runs(Path(options.folder), as_json=options.json)


def show(options: Options) -> int:
    """Show episodes, or one of them."""
    chosen = episode_page.EpisodeFilter(outcome=options.outcome, step=options.step, task=options.task, last=options.last)
    place, asked = Path(options.folder), options.episode
    return episode_page.show(options.run, asked, folder=place, chosen=chosen, tokens=options.tokens, as_json=options.json)


def export(options: Options) -> int:
    """Write the log to a file."""
    return monitors.export(options.run, Path(options.destination), folder=Path(options.folder))


def audit(options: Options) -> int:
    """Check a log."""
    return auditing.audit(options.run, folder=Path(options.folder), recompute=options.recompute)


def replay(options: Options) -> int:
    """Replay a log and compare."""
    run, settings = run_and_settings(options.words)
    folder = Path(options.folder)
    if not options.trainer:
        return replaying.replay(run, settings, folder=folder, actors=options.actor, every=options.all, as_json=options.json)
    if settings or options.actor or options.json:
        raise SetupError("--trainer compares checksums, so it takes no settings, no --actor and no --json")
    return replaying.replay_trainer(run, folder=folder)


def state(options: Options) -> int:
    """Print the state of a run at a moment."""
    return moments.state(options.run, folder=Path(options.folder), at=options.at, as_json=options.json)


def why(options: Options) -> int:
    """Print what limits a run; a bus that ends meanwhile is reported on standard error."""
    log_to_terminal()
    return reasons.why(options.run, folder=Path(options.folder), as_json=options.json)
