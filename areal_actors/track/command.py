"""`areal-actors export`: sends the points of a run to trackers until the run ends."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

from areal_actors.core.errors import SetupError
from areal_actors.core.problems import nearest
from areal_actors.core.trackers import install_hint, known_trackers, missing_trackers
from areal_actors.reader.run_files import run_folder
from areal_actors.recipe.run_settings import TrackSettings
from areal_actors.track.follow import FollowedRun, follow_file, follow_folder
from areal_actors.track.tracker_process import TrackerProcess

POLL_SECONDS = 0.5
SILENT_SECONDS = 300.0
"""Time limit of the command for one answer of a tracker."""


def track(run: str, to: str, *, folder: Path, once: bool = False, project: str = "", python: str = "") -> int:
    """Send a run to trackers, and go on until it ends; returns the exit status: 1 if a tracker failed.

    Args:
        run: name, folder or exported log; empty for the latest run.
        to: names of trackers, with commas between them.
        folder: where runs are written.
        once: send what is there, and end.
        project: project or experiment in the tracker.
        python: interpreter that has the libraries.

    Raises:
        SetupError: there is no such run or tracker, a library is not installed, or the run has not begun.
    """
    names = tuple(dict.fromkeys(name.strip() for name in to.split(",") if name.strip()))
    settings = TrackSettings(to=names, project=project, python=python, stop_seconds=SILENT_SECONDS)
    _check(settings)
    if Path(run).is_file():
        followed = follow_file(Path(run))
        return asyncio.run(send_run(followed, settings, is_over=lambda: True, patient=True))
    place = run_folder(run, folder)
    followed = follow_folder(place)

    def is_live() -> bool:
        return bool(place.live_supervisor())

    return asyncio.run(
        send_run(followed, settings, is_over=lambda: once or not is_live(), is_live=is_live, patient=True)
    )


def _check(settings: TrackSettings) -> None:
    if not settings.to:
        raise SetupError(
            f"found no tracker; name one or more, as in `--to tensorboard,wandb`; known: {', '.join(known_trackers())}"
        )
    for name in settings.to:
        if name not in known_trackers() and not settings.python:
            raise SetupError(f"there is no tracker '{name}'; {nearest(name, known_trackers())}")
    try:
        missing = missing_trackers(settings.to, settings.python)
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(
            f"--python {settings.python} does not run as a Python interpreter ({error}); name another"
        ) from error
    if missing:
        raise SetupError(install_hint(missing, settings.python))


async def send_run(
    run: FollowedRun,
    settings: TrackSettings,
    *,
    is_over: Callable[[], bool],
    is_live: Callable[[], bool] = bool,
    patient: bool = False,
) -> int:
    """Send the points of a run to all trackers until `is_over`; returns the exit status.

    Args:
        run: the run, from its beginning: each tracker leaves out what it has.
        settings: the trackers.
        is_over: returns True if no more points can come.
        is_live: returns True if the run goes on nevertheless: its trackers then get no status.
        patient: `stop_seconds` limits each answer of a tracker, instead of all after the end.

    Raises:
        SetupError: the run has not begun.
    """
    senders: list[TrackerProcess] = []

    async def start_trackers() -> list[TrackerProcess]:
        tracked = run.to_tracked_run(settings.project)
        return [await TrackerProcess.start(name, settings.python, tracked) for name in settings.to]

    while True:
        over = is_over()
        for point in run.points(last=over):
            senders = senders or await start_trackers()
            for sender in senders:
                sender.send(point._asdict())
        if over:
            break
        await asyncio.sleep(POLL_SECONDS)
    if run.started is None:
        raise SetupError(f"run '{run.name}' has no events that can be read yet; nothing was sent")
    status, error = ("", "") if is_live() else run.status()
    ends = (
        sender.end(status, error, settings.stop_seconds, patient=patient)
        for sender in senders or await start_trackers()
    )
    return 1 if any(await asyncio.gather(*ends)) else 0
