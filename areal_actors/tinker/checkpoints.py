"""Checkpoints and training runs in the state folder, by their `tinker://RUN/KIND/NAME`.

    RUN/run.json                    the training run
    RUN/weights/NAME/               training checkpoint: Hugging Face folder, adapter and optimizer
    RUN/sampler_weights/NAME/       sampler checkpoint: Hugging Face folder

Each checkpoint has its record in `tinker.json`, written last: a folder without it is incomplete and is not listed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import RequestError
from areal_actors.tinker.requests import LoraRequest

SCHEME = "tinker://"
RECORD, RUN = "tinker.json", "run.json"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
Kind = Literal["weights", "sampler_weights"]
TYPES: dict[str, str] = {"weights": "training", "sampler_weights": "sampler"}


class TrainingRunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A model that was created, whether it is still loaded or not."""

    training_run_id: str
    base_model: str
    folder: str
    """Hugging Face folder of the base model."""
    lora: LoraRequest | None
    user_metadata: dict[str, Any] | None
    last_request_time: datetime

    def to_json(self) -> dict[str, Any]:
        """The fields of Tinker's `TrainingRun`, checkpoints left out."""
        return {
            "training_run_id": self.training_run_id,
            "base_model": self.base_model,
            "model_owner": "local",
            "is_lora": self.lora is not None,
            "lora_rank": self.lora.rank if self.lora else None,
            "last_request_time": self.last_request_time,
            "user_metadata": self.user_metadata,
        }


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of Tinker's `Checkpoint`."""

    checkpoint_id: str
    """`weights/NAME` or `sampler_weights/NAME`."""
    checkpoint_type: str
    time: datetime
    tinker_path: str
    size_bytes: int
    user_metadata: dict[str, str] | None = None
    expires_at: datetime | None = None
    public: bool = False


class TinkerCheckpoints:
    """The folder of all runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # ------------------------------------------------------------ runs

    def add_run(self, run: TrainingRunRecord) -> None:
        """Write the record of a run, or replace it."""
        folder = self._run_folder(run.training_run_id)
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / RUN, msgspec.json.encode(run))

    def run(self, training_run_id: str) -> TrainingRunRecord:
        """Returns a run.

        Raises:
            RequestError: there is none of this name.
        """
        file = self._run_folder(training_run_id) / RUN
        if not file.is_file():
            raise RequestError(f"there is no training run '{training_run_id}' in {self._folder}", "training_run_id", "not_found")
        return msgspec.json.decode(file.read_bytes(), type=TrainingRunRecord)

    def runs(self) -> list[TrainingRunRecord]:
        """All runs, the newest first."""
        found = [msgspec.json.decode(file.read_bytes(), type=TrainingRunRecord) for file in self._folder.glob(f"*/{RUN}")]
        return sorted(found, key=lambda run: run.last_request_time, reverse=True)

    def describe_run(self, run: TrainingRunRecord) -> dict[str, Any]:
        """A run with its last checkpoints."""
        last = {one.checkpoint_type: one for one in reversed(self.checkpoints(run.training_run_id))}
        return run.to_json() | {"last_checkpoint": last.get("training"), "last_sampler_checkpoint": last.get("sampler")}

    # ------------------------------------------------------------ checkpoints

    def new_folder(self, training_run_id: str, kind: Kind, name: str, *, overwrite: bool = False) -> Path:
        """Folder for a new checkpoint.

        Raises:
            RequestError: the name is no file name, or is taken.
        """
        if not NAME.fullmatch(name):
            raise RequestError(f"'{name}' is no name of a checkpoint: write letters, digits, '.', '_' and '-', up to 128", "path")
        folder = self._run_folder(training_run_id) / kind / name
        if not overwrite and (folder / RECORD).is_file() and not self._expired(self._record(folder)):
            raise RequestError(f"{self._path(training_run_id, kind, name)} exists already: choose another name", "path")
        return folder

    def commit(
        self, training_run_id: str, kind: Kind, folder: Path, ttl_seconds: int | None, user_metadata: dict[str, str] | None
    ) -> CheckpointRecord:
        """Write the record of a complete checkpoint."""
        now = datetime.now(UTC)
        record = CheckpointRecord(
            checkpoint_id=f"{kind}/{folder.name}",
            checkpoint_type=TYPES[kind],
            time=now,
            tinker_path=self._path(training_run_id, kind, folder.name),
            size_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
            user_metadata=user_metadata,
            expires_at=now + timedelta(seconds=ttl_seconds) if ttl_seconds else None,
        )
        atomic_write(folder / RECORD, msgspec.json.encode(record))
        return record

    def checkpoints(self, training_run_id: str = "*") -> list[CheckpointRecord]:
        """Checkpoints of a run, or of all runs, the newest first; expired ones are removed first."""
        root = self._run_folder(training_run_id) if training_run_id != "*" else self._folder
        found = list(self._live(root, "*/*" if training_run_id != "*" else "*/*/*"))
        return sorted(found, key=lambda record: record.time, reverse=True)

    def folder(self, tinker_path: str) -> tuple[TrainingRunRecord, Kind, Path]:
        """The run, kind and folder of a checkpoint.

        Raises:
            RequestError: the path has another form, or there is no such checkpoint (any more).
        """
        parts = tinker_path.removeprefix(SCHEME).split("/")
        if not tinker_path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in TYPES or not NAME.fullmatch(parts[2]):
            raise RequestError(f"'{tinker_path}' is no path of a checkpoint: write tinker://RUN/weights/NAME", "path")
        kind: Kind = "weights" if parts[1] == "weights" else "sampler_weights"
        run = self.run(parts[0])
        folder = self._run_folder(run.training_run_id) / kind / parts[2]
        if not (folder / RECORD).is_file() or self._expired(self._record(folder)):
            raise RequestError(
                f"there is no checkpoint {tinker_path}; it was never saved here, deleted, or has expired", "path", "not_found"
            )
        return run, kind, folder

    def delete(self, tinker_path: str) -> None:
        """Delete a checkpoint; raises like `folder`."""
        shutil.rmtree(self.folder(tinker_path)[2])

    def _live(self, root: Path, pattern: str) -> Iterator[CheckpointRecord]:
        for file in root.glob(f"{pattern}/{RECORD}"):
            record = self._record(file.parent)
            if self._expired(record):
                shutil.rmtree(file.parent)
            else:
                yield record

    def _record(self, folder: Path) -> CheckpointRecord:
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=CheckpointRecord)

    def _expired(self, record: CheckpointRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= datetime.now(UTC)

    def _run_folder(self, training_run_id: str) -> Path:
        """Folder of a run; characters that file systems refuse become `-`."""
        return self._folder / re.sub(r"[^A-Za-z0-9_-]", "-", training_run_id)

    def _path(self, training_run_id: str, kind: Kind, name: str) -> str:
        return f"{SCHEME}{training_run_id}/{kind}/{name}"
