"""The sandbox, and the reward for passing tests: what a program of a model can and cannot do."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from areal_actors.core.errors import RewardError, SetupError
from areal_actors.rewards import resolve_reward
from areal_actors.rewards.python_tests import PythonTests, program_of
from areal_actors.sandbox import Limits, programs, run_program, system_calls
from areal_actors.sandbox.guest import ARCHITECTURES, seccomp_filter

LINUX = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in ARCHITECTURES, reason="the kernel shuts programs in"
)
ADD = {"id": "add", "tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'"]}
DOUBLE = {"id": "double", "tests": [{"input": "21\n", "output": "42"}, {"input": "0", "output": "0\n\n"}]}


def test_a_program_reads_what_it_is_given_and_prints():
    ran = run_program("print(int(input()) * 2)", stdin="21", limits=Limits())
    assert (ran.output, ran.status, ran.timed_out, ran.proved) == (b"42\n", 0, False, False)


FORBIDDEN_DEEDS = {
    "starts a process": "import os; os.fork()",
    "starts a program": "import subprocess; subprocess.run(['/bin/true'])",
    "becomes a program": "import os; os.execv('/bin/true', ['true'])",
    "opens a socket": "import socket; socket.socket()",
    "kills everybody": "import os; os.kill(-1, 9)",
    "kills who started it": "import os; os.kill(os.getppid(), 9)",
    "traces another": "import ctypes, os; ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) and 1 / 0",
    "writes outside": "open('../outside', 'w')",
    "writes far outside": "open('/var/tmp/areal-outside', 'w')",
    "reads outside": "open('/etc/passwd')",
    "reads another's memory": "import os; open(f'/proc/{os.getppid()}/environ')",
    "looks around": "import os; os.listdir('/')",
    "changes a mode": "import os; os.chmod('.', 0o777)",
    "links to what it may not read": "import os; os.symlink('/etc/passwd', 'x'); open('x')",
    "makes a device": "import os; os.mknod('x')",
    "changes the priority of others": "import os; os.setpriority(os.PRIO_USER, 0, 19)",
    "raises its limits": "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))",
    "limits others": "import os, resource as r; r.prlimit(os.getppid(), r.RLIMIT_CPU, (1, 1))",
    "owns a file's signals": "import fcntl, os; r, w = os.pipe(); fcntl.fcntl(r, 8, os.getppid())",
    "owns them by structure": (
        "import fcntl, os, struct as s\nr, w = os.pipe()\nfcntl.fcntl(r, 15, s.pack('ii', 1, os.getppid()))"
    ),
    "chooses the signal of a file": "import fcntl, os; r, w = os.pipe(); fcntl.fcntl(r, 10, 9)",
    "makes a pipe asynchronous": "import fcntl, os; r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETFL, 0x2000)",
    "takes a lease": "import fcntl; f = open('x', 'w'); fcntl.fcntl(f, 1024, 1)",
    "asks for notes of a folder": "import fcntl, os; fcntl.fcntl(os.open('.', os.O_RDONLY), 1026, 0x80000002)",
    "outlives who started it": "import ctypes; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) and 1 / 0",
    "leaves its process group": "import os; os.setpgid(0, 0) or os.setsid()",
    "leaves its session": "import os; os.setsid()",
    "makes a ring for input and output": "import ctypes; ctypes.CDLL(None).syscall(425, 8, 0) < 0 and 1 / 0",
    "opens a pair of sockets": "import socket; socket.socketpair()",
    "makes a timer that signals": (
        "import ctypes as c; c.CDLL(None).timer_create(1, None, c.create_string_buffer(64)) and 1 / 0"
    ),
    "watches files": "import ctypes; ctypes.CDLL(None).inotify_init() < 0 and 1 / 0",
    "calls what the kernel gains later": "import ctypes; ctypes.CDLL(None).syscall(600) and 1 / 0",
    "takes all memory": "x = bytearray(2 << 30)",
    "fills a file": "open('big', 'wb').write(bytes(2 << 20))",
    "opens too many files": "x = [open('f', 'w') for _ in range(100)]",
}


@LINUX
@pytest.mark.parametrize("deed", FORBIDDEN_DEEDS)
def test_a_program_fails_that(deed):
    ran = run_program(f"{FORBIDDEN_DEEDS[deed]}\nprint('done')", limits=Limits())
    assert not ran.timed_out
    assert ran.status != 0
    assert b"done" not in ran.output


def test_a_program_sees_no_environment(monkeypatch):
    monkeypatch.setenv("SECRET", "42")
    assert run_program("import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))", limits=Limits()).output == b"[]\n"


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("import threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join()", b"1\n"),
        ("open('notes', 'w').write('x'); print(open('notes').read())", b"x\n"),
        ("import collections, datetime, decimal, heapq, math, random, re, typing; print(1)", b"1\n"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int\nprint(A(1))", b"A(x=1)\n"),
        ("import sys; sys.setrecursionlimit(5000)\nf = lambda n: n and f(n - 1)\nprint(f(4000))", b"0\n"),
        ("if __name__ == '__main__': print(1)", b"1\n"),
        ("import sys; print(sys.stdin.read()); sys.exit()", b"\n"),
        ("import os, signal; signal.signal(10, lambda *_: print('rung')); os.kill(os.getpid(), 10)", b"rung\n"),
    ],
)
def test_what_honest_programs_do_they_may(program, printed):
    ran = run_program(program, limits=Limits())
    assert (ran.output, ran.status) == (printed, 0)


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import os, time; os.closerange(0, 99); time.sleep(600)",
        "input_ = 9**9**9",
    ],
)
def test_a_program_is_killed_when_its_time_is_up(program):
    started = time.monotonic()
    ran = run_program(program, limits=Limits(seconds=0.3))
    assert (ran.timed_out, ran.status) == (True, -signal.SIGKILL)
    assert time.monotonic() - started < 300
    assert [child for child in psutil.Process().children() if "sandbox/guest" in " ".join(child.cmdline())] == []


def test_a_flood_of_output_is_cut_and_fails_the_program():
    ran = run_program("while True: print('x' * 1000)", limits=Limits(output_kb=64))
    assert ran.status != 0
    assert len(ran.output) == 64 << 10


def test_folders_of_killed_workers_are_removed_and_those_in_use_stay(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, used, new, other = (
        tmp_path / name for name in ("areal-answer-left", "areal-answer-used", "areal-answer-new", "other")
    )
    for folder in (left, used, new, other):
        folder.mkdir()
        (folder / "answer").write_text("x")
        os.utime(folder, (1, 1))
    os.utime(new)
    holding = os.open(used, os.O_RDONLY)
    fcntl.flock(holding, fcntl.LOCK_EX)
    programs.remove_left_folders()
    assert sorted(tmp_path.iterdir()) == sorted([used, new, other])
    os.close(holding)


@LINUX
def test_a_program_dies_with_the_process_that_runs_it(tmp_path):
    code = "from areal_actors.sandbox import *\nrun_program('import time; time.sleep(600)', limits=Limits(seconds=60))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent.parent) as scoring:
        children = []
        while not (children := [child for child in psutil.Process(scoring.pid).children() if child.is_running()]):
            time.sleep(0.05)
        time.sleep(0.3)
        scoring.kill()
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []


def test_a_sandbox_that_cannot_be_made_is_an_error_and_no_reward(monkeypatch, tmp_path):
    for guest in ("import os, sys; os.write(int(sys.argv[3]), b'-no seccomp here')", "import sys; sys.exit(3)"):
        (tmp_path / "guest.py").write_text(guest)
        monkeypatch.setattr(programs, "GUEST", tmp_path / "guest.py")
        with pytest.raises(RewardError, match=r"did not start: (no seccomp here|its process ended or hung)"):
            PythonTests()(ADD, "")
    with pytest.raises(SetupError, match="cannot run programs here: the sandbox"):
        PythonTests().prepare()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(RewardError, match=r"cannot be created: .*No such file"):
        PythonTests()(ADD, "")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_allows_every_listed_call_and_forbids_the_rest(machine):
    which = list(ARCHITECTURES).index(machine)
    code = seccomp_filter(machine, (42,), system_calls)

    def verdict(number, argument=0, second=0, third=0, architecture=ARCHITECTURES[machine]):
        """Result of the kernel's interpreter of the filter."""
        value, place = 0, 0
        while True:
            operation, yes, no, operand = code[place]
            place += 1
            if operation == 0x20:
                value = {0: number, 4: architecture, 16: argument, 24: second, 32: third}[operand]
            elif operation == 0x06:
                return operand
            else:
                place += (
                    yes
                    if {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
                    else no
                )

    allowed = {numbers[which] for numbers in system_calls.ALLOWED.values() if numbers[which] >= 0}
    read, write, clone, kill, fcntl, prctl = ((0, 1, 56, 62, 72, 157), (63, 64, 220, 129, 25, 167))[which]
    assert {number for number in range(2000) if verdict(number) == 0x7FFF0000} == allowed | {fcntl, (302, 261)[which]}
    assert {number for number in range(2000) if verdict(number) == 0x50026} == {435}
    assert {verdict(read), verdict(write), verdict(clone, 0x10000), verdict(kill, 42), verdict(prctl, 15)} == {
        0x7FFF0000
    }
    assert {
        verdict(clone, 17),
        verdict(kill, 43),
        verdict(kill, 0xFFFFFFFF),
        verdict(0x40000000),
        verdict(prctl, 1),
    } == {0x50001}
    set_owner, set_signal, set_owner_ex, set_lease, notify = 8, 10, 15, 1024, 1026
    assert {verdict(fcntl, 3, command) for command in (set_owner, set_signal, set_owner_ex, set_lease, notify)} == {
        0x50001
    }
    assert (verdict(fcntl, 3, 4, 0x800), verdict(fcntl, 3, 4, 0x2800)) == (0x7FFF0000, 0x50001)
    assert verdict(read, architecture=0x40000003) == 0x80000000
    assert len(code) < 4096


# ---------------------------------------------------------------- the reward


@pytest.mark.parametrize(
    ("task", "output", "whole", "share"),
    [
        (ADD, "def add(a, b): return a + b", 1.0, 1.0),
        (ADD, "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", 1.0, 1.0),
        (ADD, "```python\ndef add(a, b): return int(a) + int(b)\n```", 0.0, 2 / 3),
        (ADD, "def add(a, b): return a - b", 0.0, 0.0),
        (ADD, "import sys; sys.exit(0)", 0.0, 0.0),
        (ADD, "import os; os._exit(0)", 0.0, 0.0),
        (ADD, "def add(a, b): raise SystemExit(0)", 0.0, 0.0),
        (ADD, "def add(a, b):\n    while True: pass", 0.0, 0.0),
        (ADD, "I do not know.", 0.0, 0.0),
        (ADD, "", 0.0, 0.0),
        (ADD, "\ud800 = 1", 0.0, 0.0),
        (ADD, "(" * 100_000, 0.0, 0.0),
        (DOUBLE, "print(int(input()) * 2)", 1.0, 1.0),
        (DOUBLE, "print(42)", 0.0, 0.5),
        (DOUBLE, "print(int(input()) * 2); raise ValueError", 0.0, 0.0),
        (DOUBLE, "print(int(input()) * 2, end='  \\n\\n')", 1.0, 1.0),
        (DOUBLE, "print(' 42')", 0.0, 0.0),
        (DOUBLE, "import sys; sys.stdout.buffer.write(b'\\xff')", 0.0, 0.0),
        ({"tests": "assert add(1, 2) == 3\nassert add(2, 2) == 4"}, "def add(a, b): return a + b", 1.0, 1.0),
    ],
)
def test_the_reward_of_a_program_is_its_share_of_passed_tests(task, output, whole, share):
    assert PythonTests(test_seconds=0.5)(task, output) == whole
    assert PythonTests(test_seconds=0.5, partial=True)(task, output) == pytest.approx(share)


def test_tests_that_are_not_reached_in_time_have_failed():
    rule = PythonTests(test_seconds=0.4, seconds=0.5, partial=True)
    task = {"tests": [{"input": "slow", "output": ""}] + [{"input": "", "output": ""}] * 20}
    started = time.monotonic()
    assert rule(task, "while input() == 'slow': pass") < 0.5
    assert time.monotonic() - started < 300


@pytest.mark.parametrize(
    ("output", "program"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1\n```\nor\n```Python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nIt prints\n```\n2\n```", "x = 1\n"),
        ("```python\nx = 1", "x = 1"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("~~~python title\nx = 1\n~~~", "x = 1\n"),
        ("```json\n{}\n```", "```json\n{}\n```"),
    ],
)
def test_the_program_of_an_answer(output, program):
    assert program_of(output) == program


@pytest.mark.parametrize(
    "tests",
    [None, [], "", " ", ["ok", ""], [1], {"input": "", "output": ""}, [{"input": ""}], [{"input": 1, "output": ""}]],
)
def test_a_task_without_tests_is_an_error_that_names_it(tests):
    with pytest.raises(RewardError, match=r"^task add-7: `tests` must be a list of"):
        PythonTests()({"id": "add-7", "tests": tests}, "x = 1")


def test_the_field_of_the_tests_is_an_option():
    rule = resolve_reward("python_tests", options={"tests": "test_list"})
    assert rule({"test_list": ["assert x == 1"]}, "x = 1") == 1.0


def test_no_answer_takes_long_to_read():
    started = time.process_time()
    for output in ("```" * 40_000, "```\n" * 30_000, "``" * 60_000, "~~~python\n" * 20_000):
        program_of(output)
    assert time.process_time() - started < 30
