"""Finding the descendants of an agent's process, which may end at any moment of the search."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from areal_actors.core.agent_host.processes import children, descendants, kill_tree

NESTED = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; print(1, flush=True);"
    " time.sleep(600)'])"
)


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_all_generations_are_found_and_killed():
    process = subprocess.Popen([sys.executable, "-c", NESTED], stdout=subprocess.PIPE, start_new_session=True)
    with process:
        process.stdout.readline()
        (child,) = descendants(process.pid)
        kill_tree(process.pid)
    assert process.returncode == -9
    deadline = time.monotonic() + 300
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)
    assert descendants(process.pid) == []


def test_a_process_that_ends_during_the_search_has_no_children():
    ended, stop = [], threading.Event()

    def search(pid):
        while not stop.is_set():
            ended.append(list(children(pid)))

    for _ in range(60):
        stop.clear()
        with subprocess.Popen(["true"]) as process:
            searching = threading.Thread(target=search, args=(process.pid,))
            searching.start()
        stop.set()
        searching.join()
        ended.append(list(children(process.pid)))
    assert ended
    assert not any(ended)


def test_what_a_search_finds_gone_is_no_failure(monkeypatch):
    def gone(*_):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("pathlib.os.scandir", gone)
    monkeypatch.setattr("pathlib.os.listdir", gone)
    assert list(children(os.getpid())) == []
