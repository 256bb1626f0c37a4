"""Files of a run are read by its own user only: another local user finds nothing to read, and cannot take a place
over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from support.live_run import RECIPE, LiveRun

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SetupError
from areal_actors.core.private_folders import make_or_keep_private, make_private, take_private
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.hosts.client import join
from areal_actors.hosts.run_connection import JoinOptions
from areal_actors.messages import WeightsLoaded
from areal_actors.recipe.load import load
from areal_actors.run.preflight import clean_up
from areal_actors.weights import folders as weight_folders
from areal_actors.weights.folders import lock_path, shared_memory_path, versions_folder

OTHER = 65534
"""Id of a user who has no rights."""
LOOK = textwrap.dedent("""
    import os, sys
    for top in sys.argv[1:]:
        for place, folders, files in os.walk(top, onerror=lambda error: None):
            for name in files:
                path = os.path.join(place, name)
                try:
                    open(path, "rb").read(1)
                except OSError:
                    continue
                print(path)
""")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started by root")


@pytest.fixture
def open_place():
    """A folder that every user can enter; pytest's own are closed."""
    place = Path(tempfile.mkdtemp(prefix="areal-test-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def as_other(*command):
    """Run a command as another user; returns its output."""
    whose = {"user": OTHER, "group": OTHER, "extra_groups": []}
    return subprocess.run(command, **whose, cwd="/", check=False, capture_output=True, text=True, timeout=60)


def readable_by_other(*places):
    """Paths of files below these folders that another user can read."""
    python = os.path.realpath(shutil.which("python3", path="/usr/bin:/bin") or sys.executable)
    looked = as_other(python, "-c", LOOK, *map(str, places))
    assert looked.returncode == 0, looked.stderr
    return looked.stdout.split("\n")[:-1]


@pytest.mark.long
@as_root
@pytest.mark.slow
async def test_another_user_reads_nothing_of_a_run_while_it_lives_nor_after_it(open_place):
    run = LiveRun(open_place / "runs", "steps=2")
    try:
        async with run.listening():
            await run.until(WeightsLoaded, 1)
            shared = shared_memory_path("gsm8k-grpo", run.folder)
            assert any(shared.rglob("*.safetensors"))
            assert readable_by_other(open_place, shared) == [str(run.output_file)]
            assert await run.ended() == 0
    finally:
        run.abort()
    assert {"summary.txt", "metrics.jsonl", "blobs", "logs"} <= {path.name for path in run.folder.iterdir()}
    assert readable_by_other(open_place) == [str(run.output_file)], (
        "what the user redirects is open, as the user's umask has it"
    )


def begun(runs):
    recipe = load([RECIPE], [f"folder={runs}", "run=closed"], CudaDevices(count=0, reason="none")).recipe
    folder = RunFolder(runs / "closed")
    folder.create(recipe)
    return folder


@as_root
def test_the_folder_of_an_earlier_release_is_closed_when_its_run_is_resumed(open_place):
    folder = begun(open_place)
    folder.path.chmod(0o755)
    (folder.path / "summary.txt").write_text("an answer")
    assert readable_by_other(open_place) == [str(folder.path / "summary.txt")]
    with folder.hold():
        assert readable_by_other(open_place) == []


@pytest.fixture
def memory(open_place, monkeypatch):
    """Shared memory, in which every user may make files."""
    place = open_place / "shm"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(weight_folders, "SHARED_MEMORY", place)
    return place


def test_the_name_in_shared_memory_follows_from_a_secret_of_the_run(memory, open_place):
    first, again = begun(open_place), begun(open_place)
    other = RunFolder(open_place / "closed.1")
    assert first.path == again.path
    (other.path / "secret").replace(again.path / "secret.old")
    name = shared_memory_path("closed", again.path).name
    (again.path / "secret.old").replace(again.path / "secret")
    assert shared_memory_path("closed", again.path).name != name, (
        "the same run and folder with another secret has another name"
    )
    assert len(name.rpartition("-")[2]) == 32


@as_root
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_place_that_another_user_has_taken_is_refused(memory, open_place, kind):
    folder = begun(open_place)
    place = shared_memory_path("closed", folder.path)
    made = as_other("/bin/sh", "-c", f"mkdir -m 777 {place}" if kind == "folder" else f"ln -s {open_place} {place}")
    assert made.returncode == 0, made.stderr
    with pytest.raises(SetupError, match="was made by another user of this machine"):
        versions_folder("closed", folder.path)
    with pytest.raises(SetupError, match="was made by another user of this machine"):
        take_private(place)


@as_root
def test_what_another_user_leaves_in_shared_memory_is_not_touched(memory, open_place):
    for name in ("areal-theirs-00", "areal-theirs-00.lock"):
        made = as_other("/bin/sh", "-c", f"mkdir {memory / name}" if "lock" not in name else f"touch {memory / name}")
        assert made.returncode == 0, made.stderr
    assert clean_up(open_place) == []
    assert lock_path(memory / "areal-theirs-00").exists()


def test_a_private_folder_is_made_with_open_parents_and_an_open_one_is_closed(tmp_path):
    make_private(tmp_path / "runs" / "one")
    assert (tmp_path / "runs" / "one").stat().st_mode & 0o777 == 0o700
    (tmp_path / "runs" / "one").chmod(0o755)
    make_private(tmp_path / "runs" / "one")
    assert (tmp_path / "runs" / "one").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_the_user_keeps_its_mode_and_is_not_taken_for_a_joined_worker(tmp_path):
    shared, file = tmp_path / "shared", tmp_path / "file"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    file.touch()
    for path, cause in ((shared, "other users of this machine may enter this folder"), (file, "this is a file")):
        options = JoinOptions(
            address=ServerAddress(url="nats://127.0.0.1:9", run="a", pid=0), role="rollout_worker", folder=str(path)
        )
        with pytest.raises(SetupError, match=f"--folder {path}: {cause}"):
            join(options)
    assert shared.stat().st_mode & 0o777 == 0o755
    make_or_keep_private(tmp_path / "new" / "folder", "--folder")
    make_or_keep_private(tmp_path / "new" / "folder", "--folder")
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700
