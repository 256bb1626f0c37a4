"""A server as a process tree: it ends with its parent and its guard, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import psutil
import pytest

from areal_actors.generation.servers.server_process import ServerProcess


def server_process(tmp_path: Path, code: str) -> ServerProcess:
    return ServerProcess("server", [sys.executable, "-u", "-c", textwrap.dedent(code)], {}, tmp_path / "server.log")


CHILDREN = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time, os; os.setsid(); time.sleep(600)"])
print("it serves")
time.sleep(600)
"""


def until_it_prints(process: ServerProcess, text: str) -> None:
    deadline = time.monotonic() + 300
    while text not in process.tail() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert text in process.tail()


def test_stopping_a_server_ends_its_whole_tree(tmp_path):
    process = server_process(tmp_path, CHILDREN)
    until_it_prints(process, "it serves")
    family = psutil.Process(process._guard.pid).children(recursive=True)
    assert len(family) == 2
    process.stop()
    process.stop()
    assert psutil.wait_procs(family, 20)[1] == []


def test_a_process_that_a_killed_guard_leaves_of_a_server_is_killed(tmp_path):
    process = server_process(tmp_path, CHILDREN.replace("os.setsid()", "0"))
    until_it_prints(process, "it serves")
    server, left = psutil.Process(process._guard.pid).children(recursive=True)
    os.kill(process._guard.pid, signal.SIGKILL)
    server.kill()
    os.waitid(os.P_PID, process._guard.pid, os.WEXITED | os.WNOWAIT)
    assert left.is_running()
    process.stop()
    assert process.was_killed()
    assert psutil.wait_procs([left], 20)[1] == []


def test_a_server_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path):
    program = f"""
        import sys, time
        from pathlib import Path
        from areal_actors.generation.servers.server_process import ServerProcess
        command = [sys.executable, "-u", "-c", {CHILDREN!r}]
        ServerProcess("server", command, {{}}, Path({str(tmp_path / "server.log")!r}))
        time.sleep(600)
        """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    deadline = time.monotonic() + 300
    while len(family := psutil.Process(parent.pid).children(recursive=True)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert len(family) == 3
    assert psutil.wait_procs(family, 20)[1] == []


SHARES_MEMORY = """
import mmap, os, signal, sys, time
from pathlib import Path
place = Path("/dev/shm") / sys.argv[1]
(place / "folder").mkdir(parents=True)
shared = []
for name in (f"{sys.argv[1]}-left", f"{sys.argv[1]}/folder/weights"):
    Path("/dev/shm", name).write_bytes(b"x" * 4096)
    file = open(Path("/dev/shm", name), "r+b")
    shared.append(mmap.mmap(file.fileno(), 4096))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("it serves")
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no shared memory")
def test_shared_memory_of_a_killed_server_is_removed_and_published_weights_are_not(tmp_path):
    name = f"areal-test-{uuid.uuid4().hex}"
    left, weights = Path("/dev/shm", f"{name}-left"), Path("/dev/shm", name, "folder", "weights")
    process = ServerProcess("server", [sys.executable, "-u", "-c", SHARES_MEMORY, name], {}, tmp_path / "server.log")
    try:
        until_it_prints(process, "it serves")
        assert left.exists()
        process.stop()
        assert not left.exists()
        assert weights.exists()
    finally:
        process.stop()
        shutil.rmtree(weights.parent.parent, ignore_errors=True)
        left.unlink(missing_ok=True)


def test_how_a_server_ended_has_its_status_and_last_lines(tmp_path):
    process = server_process(tmp_path, 'print("out of memory"); raise SystemExit(7)')
    process._guard.wait(300)
    assert "server ended with status 7 after" in process.describe_end()
    assert process.describe_end().endswith("out of memory")
    assert not process.was_killed()
    killed = server_process(tmp_path, "import os; os.kill(os.getpid(), 9)")
    killed._guard.wait(300)
    assert killed.was_killed()
    assert "out of memory" not in killed.describe_end(), "of its own output, not of its predecessor's in the same file"
    process.stop()
    killed.stop()
