"""TensorBoard: event files in `tensorboard/` of the run's folder.

The status is in a file of its own, which is removed when the run goes on: TensorBoard shows the first one that it
finds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from areal_actors.track.sender import TrackedRun, flat

STATUS = ".status"
"""End of the name of the file with the status."""


class TensorboardRun:
    """Scalars, the recipe as hyperparameters, and the end as their status.

    Numbers have single precision, as TensorBoard's.
    """

    def __init__(self, run: TrackedRun) -> None:
        self.place = str(Path(run.folder) / "tensorboard")
        self.sent = self._last_steps()
        self._events = import_module("tensorboard.compat.proto.event_pb2")
        self._values = import_module("tensorboard.compat.proto.summary_pb2")
        self._hparams = import_module("tensorboard.plugins.hparams.plugin_data_pb2")
        self._metadata = import_module("tensorboard.plugins.hparams.metadata")
        self._writers = import_module("tensorboard.summary.writer.event_file_writer")
        for ended in Path(self.place).glob(f"*{STATUS}"):
            ended.unlink()
        self._writer = self._writers.EventFileWriter(self.place)
        if not self.sent:
            self._begin(run)

    def _last_steps(self) -> dict[str, int]:
        if not Path(self.place).is_dir():
            return {}
        reading = import_module("tensorboard.backend.event_processing.event_accumulator")
        events = reading.EventAccumulator(self.place, size_guidance={"scalars": 1, "tensors": 1}).Reload()
        return {tag: events.Scalars(tag)[-1].step for tag in events.Tags()["scalars"]}

    def _begin(self, run: TrackedRun) -> None:
        info = self._hparams.SessionStartInfo(group_name=run.id, start_time_secs=run.started)
        for name, value in flat(run.config):
            if isinstance(value, bool):
                info.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                info.hparams[name].number_value = value
            else:
                info.hparams[name].string_value = value if isinstance(value, str) else str(value)
        self._describe(self._metadata.SESSION_START_INFO_TAG, run.started, session_start_info=info)

    def _describe(self, tag: str, at: float, **info: object) -> None:
        metadata = self._metadata.create_summary_metadata(self._hparams.HParamsPluginData(**info))
        value = self._values.Summary.Value(tag=tag, metadata=metadata, tensor=self._metadata.NULL_TENSOR)
        self._writer.add_event(self._events.Event(wall_time=at, summary=self._values.Summary(value=[value])))

    def send(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        values = [self._values.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(
            self._events.Event(wall_time=time, step=step, summary=self._values.Summary(value=values))
        )

    def flush(self) -> None:
        """Write the file."""
        self._writer.flush()

    def finish(self, status: str, _error: str) -> None:
        """Write the status of the hyperparameters' session."""
        self._writer.close()
        if status:
            statuses = import_module("tensorboard.plugins.hparams.api_pb2")
            ended = statuses.STATUS_SUCCESS if status == "finished" else statuses.STATUS_FAILURE
            info = self._hparams.SessionEndInfo(status=ended, end_time_secs=time.time())
            self._writer = self._writers.EventFileWriter(self.place, filename_suffix=STATUS)
            self._describe(self._metadata.SESSION_END_INFO_TAG, time.time(), session_end_info=info)
            self._writer.close()


open_run = TensorboardRun
