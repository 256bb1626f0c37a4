from __future__ import annotations

import shutil
from collections import namedtuple

import pytest

from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.recipe.run_settings import DiskSettings
from areal_actors.supervision.disk_watch import DiskWatch, refuse_full_disk

Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - as shutil has it


@pytest.fixture
def free(monkeypatch):
    """`free(megabytes)` sets how much is free."""

    def set_free(megabytes):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, megabytes * MEBIBYTE))

    return set_free


@pytest.fixture
def watch(tmp_path):
    folder = RunFolder(tmp_path / "a")
    (folder.checkpoints / "step-2").mkdir(parents=True)
    (folder.checkpoints / "step-2" / "model.safetensors").write_bytes(bytes(3 * MEBIBYTE))
    seconds = iter(range(0, 1000, 10))
    return DiskWatch(DiskSettings(min_free_mb=10), folder, lambda: next(seconds))


def test_a_run_is_refused_where_there_is_no_room_with_figures(tmp_path, free):
    free(255)
    with pytest.raises(
        SetupError,
        match=rf"255 MiB are free on the disk of {tmp_path}, a run needs at least 256; free space, or set folder",
    ):
        refuse_full_disk(DiskSettings(), tmp_path)
    refuse_full_disk(DiskSettings(min_free_mb=255), tmp_path)
    refuse_full_disk(DiskSettings(min_free_mb=0), tmp_path)
    with pytest.raises(SetupError, match=r"a run needs at least 258 \(3 for a checkpoint\); free space"):
        refuse_full_disk(DiskSettings(min_free_mb=255), tmp_path, 3 * MEBIBYTE)


def test_room_for_a_checkpoint_is_kept_before_there_is_one(tmp_path, free):
    watch = DiskWatch(DiskSettings(min_free_mb=10), RunFolder(tmp_path / "a"), lambda: 0.0, 40 * MEBIBYTE)
    free(49)
    assert watch.check().needed_bytes == 50 * MEBIBYTE
    assert "a checkpoint and the log need 50" in watch.full


def test_there_is_a_warning_first_and_an_end_while_a_checkpoint_still_fits(watch, free):
    free(26)
    assert watch.check() is None
    free(25)
    low = watch.check()
    assert (low.free_bytes, low.needed_bytes) == (25 * MEBIBYTE, 13 * MEBIBYTE)
    assert "25 MiB are free" in low.reason
    assert "a checkpoint and the log need 13" in low.reason
    assert (watch.check(), watch.full) == (None, "")
    free(12)
    assert watch.check() is None, "there is one warning"
    assert "12 MiB are free" in watch.full
    assert "free space, or lower disk.min_free_mb" in watch.full
