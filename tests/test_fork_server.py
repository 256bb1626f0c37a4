"""Processes of a run that are forked from a warm parent are children as those that are started by themselves."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import uvloop

from areal_actors.core.module_command import module_command
from areal_actors.supervision.child_processes import ProcessStart, ProcessStarter, can_adopt, environment_of

pytestmark = pytest.mark.skipif(not can_adopt(), reason="processes are forked on Linux alone")

PROGRAM = """
import json, os, random, sys, time
loaded = os.getpid()
def main(arguments):
    line = b""
    while not line.endswith(b"\\n"):
        line += os.read(0, 1)
    seen = dict(arguments=arguments, line=line.decode(), loaded=loaded, random=random.random(), argv=sys.argv[1:])
    print(json.dumps(seen | {"mark": os.environ["MARK"], "session": os.getsid(0)}), flush=True)
    if arguments[1] == "ends":
        return 3
    while os.read(0, 1):
        pass
    return 4
"""
THREADED = f"import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n{PROGRAM}"
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from areal_actors.supervision.child_processes import ProcessStart, ProcessStarter, environment_of
async def main():
    folder = Path(sys.argv[1])
    start = ProcessStart("program", (str(folder), "stays"), environment_of(os.environ))
    starter = ProcessStarter(folder, 120.0, cuda=False)
    for _ in range(2):
        starter.expect(start)
    await starter.start(start, folder / "output", b"\\n")
    while not (folder / "output").read_bytes().endswith(b"\\n"):
        await asyncio.sleep(0.05)
    print("started", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.fixture
async def started(tmp_path):
    """Starts a process of the program by name; the starter expects as many of a kind as it is called with."""
    (tmp_path / "program.py").write_text(PROGRAM)
    starter = ProcessStarter(tmp_path, 120.0, cuda=False)
    processes = []

    async def start(name, line="address\n", expected=2, module="program"):
        environment = environment_of(os.environ, {"PYTHONPATH": modules_with(tmp_path), "MARK": "of the run"})
        spec = ProcessStart(module, (str(tmp_path), name), environment)
        for _ in range(expected):
            starter.expect(spec)
        output = tmp_path / f"{name}.out"
        process = await starter.start(spec, output, line.encode())
        processes.append(process)
        await asyncio.wait_for(asyncio.to_thread(wait_for_line, output), 120)
        return process, json.loads(output.read_text().splitlines()[-1])

    start.starter = starter
    yield start
    for process in processes:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()
    await starter.close()


def wait_for_line(output):
    while not output.read_bytes().endswith(b"\n"):
        time.sleep(0.02)


def modules_with(folder):
    return os.pathsep.join([str(folder), *filter(None, sys.path)])


def fork_servers(folder):
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE
        and "areal_actors.processes.fork_server" in (words := child.cmdline())
        and str(folder) in words
    ]


async def test_forked_processes_are_children_with_arguments_output_and_session_of_their_own(started, tmp_path):
    (one, of_one), (two, of_two) = [await started(name) for name in ("one", "two")]
    (server,) = fork_servers(tmp_path)
    for process, seen, name in ((one, of_one, "one"), (two, of_two, "two")):
        known = psutil.Process(process.pid)
        assert known.ppid() == os.getpid()
        assert known.cmdline()[3:] == ["program", str(tmp_path), name]
        assert Path(known.cmdline()[2]).samefile(module_command("program")[2])
        assert known.environ()["MARK"] == seen["mark"] == "of the run"
        assert (seen["loaded"], seen["session"]) == (server.pid, process.pid)
        assert (seen["arguments"], seen["line"]) == ([str(tmp_path), name], "address\n")
        assert seen["argv"] == ["program", str(tmp_path), name]
    assert of_one["random"] != of_two["random"]


async def test_exit_status_and_signal_arrive(started):
    ended, _ = await started("ends")
    killed, _ = await started("stays")
    assert await asyncio.wait_for(ended.wait(), 60) == ended.returncode == 3
    os.kill(killed.pid, signal.SIGKILL)
    assert await asyncio.wait_for(killed.wait(), 60) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        killed.send_signal(signal.SIGTERM)
    assert not psutil.pid_exists(killed.pid), "it was reaped"


async def test_a_killed_fork_server_takes_no_process_with_it_and_is_replaced(started, tmp_path):
    process, _ = await started("first")
    (server,) = fork_servers(tmp_path)
    server.kill()
    after, seen = await started("second")
    (replacement,) = fork_servers(tmp_path)
    assert replacement.pid == seen["loaded"] != server.pid
    assert psutil.Process(after.pid).ppid() == os.getpid()
    assert process.returncode is None
    os.kill(process.pid, signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGTERM


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_end_of_a_fork_server_is_noticed_at_once_in_either_event_loop(tmp_path, factory):
    """A request waited for its deadline where something forked held the other end of the connection."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = environment_of(os.environ, {"PYTHONPATH": modules_with(tmp_path), "MARK": ""})
    spec = ProcessStart("program", (str(tmp_path), "stays"), environment)

    async def kill_between():
        starter, output, processes = ProcessStarter(tmp_path, 3600.0, cuda=False), tmp_path / "out", []
        for _ in range(2):
            starter.expect(spec)
        try:
            processes.append(await starter.start(spec, output, b"address\n"))
            await asyncio.to_thread(wait_for_line, output)
            (server,) = fork_servers(tmp_path)
            server.kill()
            processes.append(await asyncio.wait_for(starter.start(spec, output, b"address\n"), 120))
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
                await process.wait()
            await starter.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(kill_between())


async def test_a_process_that_is_one_of_its_kind_is_started_by_itself(started, tmp_path):
    process, seen = await started("alone", expected=1)
    assert seen["loaded"] == process.pid
    assert fork_servers(tmp_path) == []


async def test_a_module_with_threads_is_not_forked(started, tmp_path):
    (tmp_path / "threaded.py").write_text(THREADED)
    for name in ("one", "two"):
        process, seen = await started(name, module="threaded")
        assert seen["loaded"] == process.pid
    assert fork_servers(tmp_path) == []


async def test_a_lack_of_descriptors_is_an_error_of_the_start_and_passes(started, tmp_path):
    await started("first")
    (server,) = fork_servers(tmp_path)
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (5, limits[1]))
    with pytest.raises(OSError, match="Too many open files"):
        await started("second")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    assert (await started("second"))[1]["loaded"] == server.pid


async def test_the_closed_starter_ends_its_servers_alone(started, tmp_path):
    process, _ = await started("one")
    await started.starter.close()
    assert fork_servers(tmp_path) == []
    assert process.returncode is None


def test_everything_ends_with_the_supervisor(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": modules_with(tmp_path), "MARK": ""}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env=environment, capture_output=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"started\n"), done.stderr
    until = time.monotonic() + 60
    while left := [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in (one.info["cmdline"] or [])]:
        assert time.monotonic() < until, left
        time.sleep(0.05)
