"""One process has a run's folder at a time, decided by a lock that ends with its holder: real processes, real kill
-9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from support.live_run import RECIPE

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import PROCESSES_LOCK, RunFolder
from areal_actors.folder.run_lock import LockHeld, holder, lock_file
from areal_actors.recipe.load import load

HOLD = """
import os, sys, time
from pathlib import Path
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder

folder, when = RunFolder(Path(sys.argv[1])), float(sys.argv[2])
time.sleep(max(when - time.time(), 0))
try:
    with folder.hold():
        if "child" in sys.argv:
            import subprocess
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, flush=True)
        print("held", flush=True)
        sys.stdin.read()
except SetupError as error:
    print(error, flush=True)
"""


@contextmanager
def holding(folder, when=0.0, *words):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(when), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_of_several_that_start_in_the_same_moment_one_runs_and_the_others_name_it(tmp_path):
    when = time.time() + 4
    with (
        holding(tmp_path / "a", when) as one,
        holding(tmp_path / "a", when) as two,
        holding(tmp_path / "a", when) as three,
    ):
        first_lines = {process.pid: process.stdout.readline().strip() for process in (one, two, three)}
        (first,) = (pid for pid, line in first_lines.items() if line == "held")
        refused = {line for line in first_lines.values() if line != "held"}
        assert refused == {
            f"run 'a' is running (process {first}); stop it first, or give this one another name: run=NAME"
        }


def test_the_lock_ends_with_its_holder_although_a_child_lives_on(tmp_path):
    (tmp_path / "a").mkdir()
    folder = RunFolder(tmp_path / "a")
    with holding(folder.path, 0, "child") as process:
        child = int(process.stdout.readline())
        assert process.stdout.readline() == "held\n"
        assert folder.live_supervisor() == f"process {process.pid}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            os.kill(child, 0)
            assert folder.live_supervisor() == ""
            with folder.hold():
                assert folder.live_supervisor() == f"process {os.getpid()}"
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_live_run_is_recognised_under_another_name(tmp_path):
    (tmp_path / "a").mkdir()
    with RunFolder(tmp_path / "a").hold():
        (tmp_path / "a").rename(tmp_path / "b")
        with pytest.raises(SetupError, match="run 'b' is running"), RunFolder(tmp_path / "b").hold():
            pass


def test_a_second_run_of_the_name_of_a_live_one_leaves_its_folder_alone(tmp_path):
    recipe = load([RECIPE], [f"folder={tmp_path}"], CudaDevices(count=0, reason="none")).recipe
    folder = RunFolder(tmp_path / recipe.run)
    with folder.hold():
        folder.create(recipe)
        secret = folder.secret()
        with pytest.raises(SetupError, match="is running"), RunFolder(folder.path).hold():
            folder.create(recipe)
        assert folder.secret() == secret
    with folder.hold():
        folder.create(recipe)
    assert sorted(path.name for path in tmp_path.iterdir()) == [recipe.run, f"{recipe.run}.1"]


def test_processes_of_a_killed_run_that_still_live_are_waited_for_and_named(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.setattr("areal_actors.folder.run_folder.ORPHAN_SECONDS", 0.1)
    with (
        lock_file(tmp_path / "a" / PROCESSES_LOCK),
        pytest.raises(SetupError, match="was killed, but some of its processes still run and hold"),
        RunFolder(tmp_path / "a").hold(),
    ):
        pass


def test_a_lock_that_is_only_looked_at_is_free(tmp_path):
    lock = tmp_path / "lock"
    assert holder(lock) is None
    with lock_file(lock):
        assert holder(lock) == os.getpid()
        with pytest.raises(LockHeld), lock_file(lock, seconds=0):
            pass
    assert holder(lock) is None
