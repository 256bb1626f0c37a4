"""Trackio: `trackio/` in the folder of all runs, unless TRACKIO_DIR is set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from areal_actors.track.sender import TrackedRun

ID = "areal_id"


class TrackioRun:
    """Metrics, the recipe as config, and the end as an alert. A run in the local store is found again by its config."""

    def __init__(self, run: TrackedRun) -> None:
        if not os.environ.get("TRACKIO_DIR"):
            os.environ["TRACKIO_DIR"] = str(Path(run.store) / "trackio")
        self._trackio = import_module("trackio")
        project = run.project_name("TRACKIO_PROJECT")
        existing = self._find_run(project, run.id)
        self._run = self._trackio.init(
            project=project,
            name=existing.name if existing else run.name,
            config={**run.config, ID: run.id},
            resume="must" if existing else "never",
            embed=False,
            auto_log_gpu=False,  # of this process, which is not the run
            auto_log_cpu=False,
        )
        if existing and self._run.id != existing.id:
            raise RuntimeError(
                f"project {project} has a newer run {existing.name}, and Trackio continues only the newest of a name"
            )
        self.sent = self._last_steps(project, existing) if existing else {}
        self.place = f"{os.environ['TRACKIO_DIR']}, project {project}"

    def _find_run(self, project: str, areal_id: str) -> Any:
        try:
            runs = list(self._trackio.Api().runs(project))
        except ValueError:  # there is no such project
            return None
        return next((candidate for candidate in runs if (candidate.config or {}).get(ID) == areal_id), None)

    def _last_steps(self, project: str, existing: Any) -> dict[str, int]:
        logs = import_module("trackio.sqlite_storage").SQLiteStorage.get_logs(
            project, existing.name, run_id=existing.id
        )
        return {name: row["step"] for row in sorted(logs, key=lambda row: row["step"]) for name in row}

    def send(self, step: int, _time: float, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step, under the time of this call."""
        self._run.log(dict(metrics), step=step)

    def flush(self) -> None:
        """Do nothing: a thread of the library writes every half second."""

    def finish(self, status: str, error: str) -> None:
        """Raise an alert with the status, and write the rest."""
        if status:
            levels = self._trackio.AlertLevel
            self._run.alert(f"run {status}", error or None, level=levels.INFO if status == "finished" else levels.ERROR)
        self._run.finish()


open_run = TrackioRun
