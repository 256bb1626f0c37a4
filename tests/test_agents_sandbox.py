"""What a program of the model can and cannot do."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from pathlib import Path

import pytest
from framework_house import ROOT

from areal_actors.loading import load_named

MODULE = sys.modules[load_named("agents/python_tools.py:PythonToolsAgent", ROOT).__module__]


async def test_a_program_prints_its_result():
    assert await MODULE.run_python("print(6 * 7)") == "42\n"


async def test_a_program_that_prints_nothing_says_how_it_ended():
    assert await MODULE.run_python("x = 1") == "the program printed nothing and ended with 0"


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("print(", "SyntaxError"),
        ("'\ud800'; import no_such", "ModuleNotFoundError"),
        ("x = bytearray(2 << 30)", "MemoryError"),
        ("open('big', 'wb').write(b'x' * (1 << 20))", "File too large"),
        ("import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))", "[]"),
        ("import numpy", "ModuleNotFoundError"),
    ],
)
async def test_what_goes_wrong_is_what_it_prints(code, complaint):
    assert complaint in await MODULE.run_python(code)


async def test_a_flood_of_output_is_cut():
    assert len(await MODULE.run_python("while True: print('x' * 1000)")) == MODULE.LONGEST_OUTPUT


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(60)", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"]
)
async def test_a_program_is_killed_when_its_time_is_up(code, monkeypatch):
    monkeypatch.setattr(MODULE, "SECONDS", 0.3)
    started = time.monotonic()
    assert "ran for more than" in await MODULE.run_python(code)
    assert time.monotonic() - started < 3


async def test_what_a_program_has_started_dies_with_it(tmp_path):
    pid = await MODULE.run_python("import subprocess; print(subprocess.Popen(['/bin/sleep', '60']).pid)")
    if not pid.strip().isdigit():
        assert "Resource temporarily unavailable" in pid  # only root may start processes here
        return
    for _ in range(100):
        if state_of(int(pid)) in {"Z", "gone"}:
            break
        await asyncio.sleep(0.01)
    assert state_of(int(pid)) in {"Z", "gone"}


def state_of(pid):
    """The letter under which /proc lists a process: Z for one that is dead and not yet buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


async def test_cancelling_the_agent_kills_the_program(tmp_path):
    mark = tmp_path / "pid"
    running = asyncio.create_task(MODULE.run_python(f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"))
    for _ in range(500):
        if mark.exists() and mark.read_text():
            break
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


@pytest.fixture(scope="module")
def namespaces_allowed():
    child = os.fork()
    if child == 0:
        os._exit(1 if ctypes.CDLL(None).unshare(0x50000000) else 0)
    return os.waitpid(child, 0)[1] == 0


async def test_a_program_has_no_network_where_the_kernel_can_take_it_away(namespaces_allowed):
    if not namespaces_allowed:
        pytest.skip("this kernel lets nobody but root make namespaces")
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    said = await MODULE.run_python(f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)")
    server.close()
    assert "Network is unreachable" in said


@pytest.mark.parametrize(
    ("expression", "value"), [("9 * 2", "18"), ("(1 + 2) / 4 - -3", "3.75"), ("1/3", "0.333333333333"), ("10**2", None), ("x", None)]
)
def test_the_calculator(expression, value):
    if value is None:
        with pytest.raises(ValueError, match="numbers"):
            MODULE.calculate(expression)
    else:
        assert MODULE.calculate(expression) == value
