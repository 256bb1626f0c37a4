"""Small files are old or new and never in between; line logs lose at most their last line, and report it. On a real
full disk, too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from areal_actors.core.durable_files import append_line, atomic_write, read_lines
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import CheckpointStaged, RunFinished
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.checkpointer import CheckpointConfig, Checkpointer


@pytest.fixture
def full(tmp_path):
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if (
        os.geteuid()
        or mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run([shutil.which("umount"), place], check=True)


@pytest.fixture
def frozen(full):
    """Makes folders of a disk, and then the disk read-only."""

    def freeze(*names):
        for name in names:
            (full / name).mkdir(parents=True, exist_ok=True)
        subprocess.run([shutil.which("mount"), "-o", "remount,ro", full], check=True)
        return full

    return freeze


def fill(place, leave=0):
    """Fill the disk, but for `leave` bytes."""
    with (place / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            file.truncate(max(file.tell() - leave, 0))


def test_a_file_is_replaced_in_one_step_with_its_mode(tmp_path):
    path = tmp_path / "secret"
    atomic_write(path, b"old", mode=0o600)
    atomic_write(path, b"new", mode=0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert [one.name for one in tmp_path.iterdir()] == ["secret"]


def test_on_a_full_disk_the_old_content_stays_and_nothing_is_left_beside_it(full):
    atomic_write(full / "recipe.json", b"old")
    fill(full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(full / "recipe.json", bytes(100_000))
    assert (full / "recipe.json").read_bytes() == b"old"
    assert sorted(path.name for path in full.iterdir()) == ["filling", "recipe.json"]


def test_a_line_that_does_not_fit_on_the_disk_leaves_the_file_as_it_was(full):
    path = full / "metrics.jsonl"
    append_line(path, '{"step": 1}')
    fill(full)
    with pytest.raises(
        SetupError, match=r"metrics.jsonl cannot be written: the disk is full \(0 of 0 MiB free\); free space"
    ):
        append_line(path, json.dumps({"step": 2, "long": "x" * 5000}))
    assert all("step" in json.loads(line) for line in path.read_text().splitlines())
    assert path.read_bytes().endswith(b"\n")


def test_after_a_line_that_was_cut_short_the_next_begins_on_a_fresh_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_line(path, '{"step": 1}')
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    append_line(path, '{"step": 3}')
    lines = read_lines(path)
    assert [row["step"] for row in lines.rows] == [1, 3]
    assert lines.damaged == (2,)
    assert lines.complaint(path) == "metrics.jsonl: line 2 is truncated or damaged and ignored; the other 2 are used"


def test_bytes_that_are_no_text_and_lines_that_are_no_objects_are_named(tmp_path):
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b'{"a": 1}\n\xff\xfe\n[1]\n\n{"a": 2}\n{"a":')
    lines = read_lines(path)
    assert [row["a"] for row in lines.rows] == [1, 2]
    assert (
        lines.complaint(path)
        == "episodes.jsonl: 3 lines (2, 3, 6) are truncated or damaged and ignored; the other 2 are used"
    )


def test_a_file_that_is_not_there_has_no_lines_and_no_complaint(tmp_path):
    lines = read_lines(tmp_path / "nothing")
    assert (lines.rows, lines.complaint(tmp_path / "nothing")) == ((), "")


async def test_the_metrics_of_a_resumed_run_go_on_after_a_torn_line(send, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"time": 1.0, "kind": "step.comp')
    await send(Metrics(path), RunFinished(steps=3))
    lines = read_lines(path)
    assert [row["kind"] for row in lines.rows] == ["run.finished"]
    assert lines.damaged == (1,)


def test_a_line_for_a_read_only_folder_is_refused_with_the_remedy(frozen):
    place = frozen("run")
    with pytest.raises(
        SetupError,
        match=r"/run cannot be written \(Read-only file system\); make it writable .*, then `areal-actors resume run`",
    ):
        append_line(place / "run" / "metrics.jsonl", "{}")


def test_a_checkpoint_for_a_read_only_folder_is_refused_with_the_remedy(frozen):
    place = frozen("run/checkpoints")
    store = CheckpointStore(place / "run")
    for error in (None, RuntimeError("safetensors: Read-only file system (os error 30)")):

        def save(folder, error=error):
            raise error or OSError(30, "Read-only file system", folder)

        with pytest.raises(
            SetupError,
            match=r"cannot write a checkpoint to .*/run/checkpoints cannot be written \(Read-only file system\)",
        ):
            store.write(save, "checkpoints/.writing-step-2")


def test_an_error_that_only_names_permissions_is_not_that_of_a_read_only_folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()

    def save(folder):
        raise PermissionError(13, "Permission denied", "/etc/shadow")

    with pytest.raises(PermissionError, match="/etc/shadow"):
        CheckpointStore(tmp_path).write(save, "checkpoints/.writing-step-2")


def test_a_run_with_a_read_only_folder_is_not_resumed(frozen):
    place = frozen("run/checkpoints", "run/logs")
    with pytest.raises(
        SetupError, match=r"run 'run' cannot be resumed: .*/run cannot be written \(Read-only file system\)"
    ):
        RunFolder(place / "run").check_writable()


async def test_a_checkpoint_that_cannot_be_finalized_for_a_read_only_folder_ends_the_run(frozen, send):
    place = frozen("run/checkpoints/.writing-step-2")
    actor = Checkpointer(CheckpointConfig(), folder=place / "run" / "checkpoints", steps=2)
    staged = CheckpointStaged(folder="checkpoints/.writing-step-2", step=2, cursor=7)
    with pytest.raises(
        SetupError, match=r"cannot finalize the checkpoint of step 2 .* cannot be written \(Read-only file system\)"
    ):
        await send(actor, staged)
