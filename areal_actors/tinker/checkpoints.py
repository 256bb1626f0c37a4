"""Checkpoints and training runs in the state folder, by their `tinker://RUN/KIND/NAME`.

    RUN/run.json                    the training run
    RUN/weights/NAME                training checkpoint: Hugging Face folder, adapter and optimizer
    RUN/sampler_weights/NAME        sampler checkpoint: Hugging Face folder

A checkpoint is written as one of a run is (`training/checkpoint_store.py`), with its record `tinker.json` and a
manifest of all files. Then its folder is renamed to `.NAME.DIGEST`, with the digest of the manifest, and the link
`NAME` is pointed to it: a killed server leaves the old checkpoint or the new one, and every byte of it can be verified.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import CheckpointError, RequestError
from areal_actors.core.values import WeightsLocation
from areal_actors.tinker.requests import LoraRequest
from areal_actors.training.checkpoint_store import CheckpointStore, folder_bytes
from areal_actors.weights.manifest import read_verified, verify, write_manifest
from areal_actors.weights.weight_files import location_of
from areal_bus.durability import sync

logger = structlog.get_logger(__name__)

SCHEME = "tinker://"
RECORD, RUN = "tinker.json", "run.json"
WRITING = ".writing"
"""Folder that is not complete yet, beside the checkpoints of its kind."""
SAVE_AGAIN = "save the checkpoint again"
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


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`tinker.json`. The run is part of it, so that loading depends on verified files only."""

    checkpoint: CheckpointRecord
    run: TrainingRunRecord


class TinkerCheckpoints:
    """The folder of all runs; one process at a time writes to it."""

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
            CheckpointError: its record is damaged.
        """
        file = self._run_folder(training_run_id) / RUN
        if not file.is_file():
            raise RequestError(
                f"there is no training run '{training_run_id}' in {self._folder}", "training_run_id", "not_found"
            )
        return _read_run(file)

    def runs(self) -> list[TrainingRunRecord]:
        """All runs, the newest first; those with a damaged record are left out, which is logged."""
        runs = []
        for file in self._folder.glob(f"*/{RUN}"):
            try:
                runs.append(_read_run(file))
            except CheckpointError as error:
                logger.warning("a training run is not listed", reason=str(error))
        return sorted(runs, key=lambda run: run.last_request_time, reverse=True)

    def describe_run(self, run: TrainingRunRecord) -> dict[str, Any]:
        """A run with its last checkpoints."""
        last = {
            checkpoint.checkpoint_type: checkpoint for checkpoint in reversed(self.checkpoints(run.training_run_id))
        }
        return run.to_json() | {"last_checkpoint": last.get("training"), "last_sampler_checkpoint": last.get("sampler")}

    # ------------------------------------------------------------ checkpoints

    def save(
        self,
        run: TrainingRunRecord,
        kind: Kind,
        name: str,
        write: Callable[[Path], object],
        *,
        overwrite: bool = False,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> CheckpointRecord:
        """Have a checkpoint written, and make it that of this name at once; an earlier one stays until then.

        Args:
            run: the run that it belongs to.
            kind: for training or for sampling.
            name: name within the run.
            write: writes the Hugging Face folder, and the training state if any, to a path that does not exist yet.
            overwrite: replace a checkpoint of this name.
            ttl_seconds: time after which it is removed; None keeps it.
            user_metadata: the client's notes.

        Raises:
            RequestError: the name is no file name, or is taken.
            SetupError: the disk is full, or the folder cannot be written.
        """
        link = self._link(run.training_run_id, kind, name)
        path = self._path(run.training_run_id, kind, name)
        if not overwrite and self._is_taken(link):
            raise RequestError(f"{path} exists already: choose another name", "path")
        if link.exists() and not link.is_symlink():
            raise RequestError(f"{link} was written by an earlier version: remove it, or choose another name", "path")
        now = datetime.now(UTC)
        record = CheckpointRecord(
            checkpoint_id=f"{kind}/{name}",
            checkpoint_type=TYPES[kind],
            time=now,
            tinker_path=path,
            size_bytes=0,
            user_metadata=user_metadata,
            expires_at=now + timedelta(seconds=ttl_seconds) if ttl_seconds else None,
        )

        def complete(folder: str) -> None:
            nonlocal record
            write(Path(folder))
            record = msgspec.structs.replace(record, size_bytes=folder_bytes(Path(folder)))
            atomic_write(Path(folder) / RECORD, msgspec.json.encode(StoredRecord(checkpoint=record, run=run)))
            _publish(Path(folder), link)

        link.parent.mkdir(parents=True, exist_ok=True)
        CheckpointStore(link.parent, SAVE_AGAIN).write(complete, WRITING)
        return record

    def checkpoints(self, training_run_id: str = "*") -> list[CheckpointRecord]:
        """Checkpoints of a run, or of all runs, the newest first; expired ones are removed first.

        One with a damaged record is left out, which is logged.
        """
        root = self._run_folder(training_run_id) if training_run_id != "*" else self._folder
        return sorted(
            self._live(root, "*/*" if training_run_id != "*" else "*/*/*"), key=lambda record: record.time, reverse=True
        )

    def folder(self, tinker_path: str) -> tuple[TrainingRunRecord, Kind, Path]:
        """The run, kind and folder of a checkpoint; of its files only the record is verified.

        Raises:
            RequestError: the path has another form, or there is no such checkpoint (any more).
            CheckpointError: its record is damaged.
        """
        kind, link = self._place(tinker_path)
        if link.is_symlink():
            stored = self._read_record(link)
            if not _has_expired(stored.checkpoint):
                return stored.run, kind, _version(link)
        raise _not_found(tinker_path)

    def weights(self, tinker_path: str) -> WeightsLocation:
        """Location of a checkpoint's weights, verified; blocks for the time that reading takes.

        Raises like `folder` and `verify`.
        """
        _, _, folder = self.folder(tinker_path)
        self.verify(folder)
        return location_of(folder)

    def verify(self, folder: Path) -> None:
        """Verify every byte of a folder of `folder`; blocks for the time that reading takes.

        Raises:
            CheckpointError: names the file that differs.
        """
        try:
            verify(folder, _digest_of(folder))
        except CheckpointError as error:
            raise CheckpointError(f"the checkpoint is damaged: {error}; load another one") from error

    def delete(self, tinker_path: str) -> None:
        """Delete a checkpoint, a damaged one too.

        Raises:
            RequestError: the path has another form, or there is no such checkpoint.
        """
        _, link = self._place(tinker_path)
        if not link.is_symlink():
            raise _not_found(tinker_path)
        _remove(link)

    def remove_unfinished(self) -> None:
        """Remove what a killed server was writing or deleting."""
        for kind in TYPES:
            for folder in self._folder.glob(f"*/{kind}"):
                links = [path for path in folder.iterdir() if path.is_symlink() and not path.name.startswith(".")]
                used = {_version(link).name for link in links}
                for path in folder.glob(".*"):
                    if path.is_symlink():
                        path.unlink()
                    elif path.name not in used:
                        shutil.rmtree(path, ignore_errors=True)

    # ------------------------------------------------------------ within

    def _live(self, root: Path, pattern: str) -> Iterator[CheckpointRecord]:
        for link in root.glob(pattern):
            if not link.is_symlink() or link.parent.name not in TYPES or link.name.startswith("."):
                continue
            try:
                record = self._read_record(link).checkpoint
            except CheckpointError as error:
                if link.is_symlink():  # else it was deleted meanwhile
                    logger.warning("a checkpoint is not listed", reason=str(error))
                continue
            if _has_expired(record):
                _remove(link)
            else:
                yield record

    def _is_taken(self, link: Path) -> bool:
        """True if there is a checkpoint that has not expired; a damaged one is taken, too."""
        try:
            return link.is_symlink() and not _has_expired(self._read_record(link).checkpoint)
        except CheckpointError:
            return True

    def _read_record(self, link: Path) -> StoredRecord:
        while True:
            try:
                folder = _version(link)
                return msgspec.json.decode(read_verified(folder, RECORD, _digest_of(folder)), type=StoredRecord)
            except CheckpointError:
                if not link.is_symlink() or _version(link) == folder:  # else it was replaced meanwhile
                    raise
            except (OSError, msgspec.MsgspecError) as error:
                raise CheckpointError(f"the checkpoint {link} cannot be read: {error}") from error

    def _place(self, tinker_path: str) -> tuple[Kind, Path]:
        parts = tinker_path.removeprefix(SCHEME).split("/")
        if (
            not tinker_path.startswith(SCHEME)
            or len(parts) != 3
            or parts[1] not in TYPES
            or not NAME.fullmatch(parts[2])
        ):
            raise RequestError(f"'{tinker_path}' is no path of a checkpoint: write tinker://RUN/weights/NAME", "path")
        kind: Kind = "weights" if parts[1] == "weights" else "sampler_weights"
        return kind, self._link(parts[0], kind, parts[2])

    def _link(self, training_run_id: str, kind: Kind, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise RequestError(
                f"'{name}' is no name of a checkpoint: write letters, digits, '.', '_' and '-', up to 128", "path"
            )
        return self._run_folder(training_run_id) / kind / name

    def _run_folder(self, training_run_id: str) -> Path:
        """Folder of a run; characters that file systems refuse become `-`."""
        return self._folder / re.sub(r"[^A-Za-z0-9_-]", "-", training_run_id)

    def _path(self, training_run_id: str, kind: Kind, name: str) -> str:
        return f"{SCHEME}{training_run_id}/{kind}/{name}"


def _publish(folder: Path, link: Path) -> None:
    """Write the manifest of a complete folder, and point the name to it; the folder that it named before is removed."""
    digest = write_manifest(folder)
    sync(folder)
    version = link.with_name(f".{link.name}.{digest}")
    folder.rename(version)
    before = _version(link) if link.is_symlink() else None
    new = link.with_name(f"{WRITING}-link")
    new.unlink(missing_ok=True)
    new.symlink_to(version.name)
    new.replace(link)
    sync(link.parent)
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)


def _remove(link: Path) -> None:
    version = _version(link)
    link.unlink(missing_ok=True)
    sync(link.parent)
    shutil.rmtree(version, ignore_errors=True)


def _version(link: Path) -> Path:
    """The folder that a link names: `.NAME.DIGEST` beside it."""
    return link.with_name(link.readlink().name)


def _digest_of(version: Path) -> str:
    return version.name.rpartition(".")[2]


def _not_found(tinker_path: str) -> RequestError:
    return RequestError(
        f"there is no checkpoint {tinker_path}; it was never saved here, deleted, or has expired", "path", "not_found"
    )


def _has_expired(record: CheckpointRecord) -> bool:
    return record.expires_at is not None and record.expires_at <= datetime.now(UTC)


def _read_run(file: Path) -> TrainingRunRecord:
    try:
        return msgspec.json.decode(file.read_bytes(), type=TrainingRunRecord)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{file} is damaged ({error}): restore it, or remove the folder of this run") from error
