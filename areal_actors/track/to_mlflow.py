"""MLflow: `mlflow.db` in the folder of all runs, unless MLFLOW_TRACKING_URI is set."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from areal_actors.track.sender import TrackedRun, flat

ID = "areal.id"
METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 1000, 100
LONGEST_PARAMETER = 6000
"""Limits of the tracking server."""
STATUSES = {"finished": "FINISHED", "ended early": "FAILED", "interrupted": "KILLED"}


class MlflowRun:
    """Metrics, and the recipe as parameters, of a run that is found again by its tag.

    Parameters cannot be changed later.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._entities = import_module("mlflow.entities")
        uri = os.environ.get("MLFLOW_TRACKING_URI", "") or f"sqlite:///{Path(run.store) / 'mlflow.db'}"
        self._client = import_module("mlflow").MlflowClient(tracking_uri=uri)
        self._pending: list[Any] = []
        experiment = self._experiment(run.project_name("MLFLOW_EXPERIMENT_NAME"))
        existing = self._client.search_runs([experiment], filter_string=f"tags.`{ID}` = '{run.id}'", max_results=1)
        tags = {ID: run.id}
        mlflow_run = (
            existing[0]
            if existing
            else self._client.create_run(experiment, start_time=_ms(run.started), run_name=run.name, tags=tags)
        )
        self._id = mlflow_run.info.run_id
        self.place = f"{uri}, run {self._id}"
        self.sent = {
            name: max(point.step for point in self._client.get_metric_history(self._id, name))
            for name in mlflow_run.data.metrics
        }
        if existing:
            self._client.update_run(self._id, status="RUNNING")
        new = [(name, _text(value)) for name, value in flat(run.config) if name not in mlflow_run.data.params]
        for part in _parts(new, PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=[self._entities.Param(name, value) for name, value in part])

    def _experiment(self, name: str) -> str:
        if experiment := self._client.get_experiment_by_name(name):
            return str(experiment.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except Exception:
            if experiment := self._client.get_experiment_by_name(name):  # another run has just created it
                return str(experiment.experiment_id)
            raise

    def send(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step for the next request."""
        self._pending += [
            self._entities.Metric(_allowed_name(name), value, _ms(time), step) for name, value in metrics.items()
        ]
        if len(self._pending) >= METRICS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Send them."""
        for part in _parts(self._pending, METRICS_AT_ONCE):
            self._client.log_batch(self._id, metrics=list(part))
        self._pending.clear()

    def finish(self, status: str, error: str) -> None:
        """Set the run's status."""
        if error:
            self._client.set_tag(self._id, "areal.error", error)
        if status:
            self._client.set_terminated(self._id, status=STATUSES[status])


def _allowed_name(name: str) -> str:
    """Returns a name of a metric without the characters that MLflow refuses."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _text(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:LONGEST_PARAMETER]


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


open_run = MlflowRun
