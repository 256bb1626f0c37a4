"""Resources that a model's code reaches: in a process that only has limits, and in the sandbox. Each attempt is really
made.

`python tests/support/sandbox_reach.py` writes the table into docs/security.md; `test_sandbox_reach.py` checks the
sandbox's column.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from support.permission_matrix import TABLE_IN, recipe

from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.sandbox import Limits, run_python

BEGIN, END = "<!-- reach of model code: begin -->\n", "<!-- reach of model code: end -->"
SECONDS = 3.0
REACHED = "reached-it"
DAEMON = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print({REACHED!r}, os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(0.5)
"""
ONLY_LIMITS = f"""
import ctypes, resource, sys
limits = resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE
for limit, most in zip(limits, ({SECONDS:.0f}, 512 << 20, 64 << 10, 0, 0)):
    resource.setrlimit(limit, (most, most))
ctypes.CDLL(None).unshare(0x50000000)
exec(compile(sys.stdin.read(), "program.py", "exec"), {{"__name__": "__main__"}})
"""
"""A process with limits, and without a network where the kernel gives it a namespace: how such tools are often
written."""


class Surroundings(NamedTuple):
    """Resources to reach."""

    folder: RunFolder
    port: int
    socket: Path


@contextmanager
def surroundings(place: Path) -> Iterator[Surroundings]:
    """The folder of a run with its secrets, and listeners in place of its gateway and its bus."""
    folder = RunFolder(place / "run")
    folder.create(recipe())
    folder.announce(ServerAddress(url="nats://monitor:x@127.0.0.1:1", run="r", pid=1))
    (folder.nats / "nats-server.conf").write_text("{}")
    with socket.socket() as listening, socket.socket(socket.AF_UNIX) as local:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        local.bind(str(place / "socket"))
        local.listen(64)
        yield Surroundings(folder, listening.getsockname()[1], place / "socket")


def deeds(there: Surroundings) -> dict[str, str]:
    """By what is tried, a program that prints a word if it succeeds."""
    done = f"print({REACHED!r})"
    files = {
        "secret": "the secret",
        "admin_key": "`admin_key`",
        "monitor.json": "`monitor.json`",
        "recipe.json": "`recipe.json`",
    }
    read = {
        f"files: {what} of the run": f"open({str(there.folder.path / name)!r}, 'rb').read(); {done}"
        for name, what in files.items()
    }
    parent = "import os; parent = os.getppid()"
    return {
        **read,
        "files: the bus's configuration": f"open({str(there.folder.nats / 'nats-server.conf')!r}).read(); {done}",
        "files: the home folder": f"import os, pwd; os.listdir(pwd.getpwuid(os.getuid()).pw_dir); {done}",
        "files: `/etc/passwd`": f"open('/etc/passwd').read(); {done}",
        "files: writing beside its folder": f"open({str(there.folder.path / 'planted')!r}, 'w').write('x'); {done}",
        "files: writing to `/tmp`": f"import tempfile; open('/tmp/areal-reach-probe', 'w').write('x'); {done}",
        "network: the gateway or the bus": (
            f"import socket; socket.create_connection(('127.0.0.1', {there.port}), 2); {done}"
        ),
        "network: a Unix socket": (
            f"import socket; socket.socket(socket.AF_UNIX).connect({str(there.socket)!r}); {done}"
        ),
        "network: a route to the internet": (
            f"from socket import *; socket(AF_INET, SOCK_DGRAM).connect(('9.9.9.9', 53)); {done}"
        ),
        "processes: signalling its parent": f"{parent}; os.kill(parent, 0); {done}",
        "processes: tracing its parent": (
            f"{parent}; import ctypes; ctypes.CDLL(None).ptrace(0x4206, parent, None, None) and 1 / 0; {done}"
        ),
        "processes: its parent's memory": f"{parent}; open(f'/proc/{{parent}}/mem', 'rb'); {done}",
        "processes: its parent's environment": f"{parent}; open(f'/proc/{{parent}}/environ').read(); {done}",
        "processes: starting a program": f"import subprocess; subprocess.run(['/bin/true'], check=True); {done}",
        "processes: a daemon that stays": DAEMON,
        "environment: a variable of its parent": f"import os; os.environ['AREAL_REACH_PROBE']; {done}",
        "memory: 2 GB": f"x = bytearray(2 << 30); {done}",
        "disk: 64 MB": (
            f"import pathlib\nfor number in range(1600): pathlib.Path(str(number)).write_bytes(bytes(40 << 10))\n{done}"
        ),
        "disk: 20,000 files": f"import pathlib\nfor number in range(20000): pathlib.Path(str(number)).touch()\n{done}",
        "time: beyond its limit": f"import time; time.sleep({2 * SECONDS}); {done}",
    }


def with_limits_only(code: str, seconds: float = SECONDS) -> str:
    """Output of a program that has no sandbox."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, tempfile.TemporaryFile() as output:
        program = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ONLY_LIMITS],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            program.communicate(code.encode(), seconds)
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        output.seek(0)
        return output.read().decode(errors="replace")


async def in_the_sandbox(code: str) -> str:
    """Output of a program that an agent's tool runs."""
    return await run_python(code, limits=Limits(seconds=SECONDS, output_kb=64))


def reached(printed: str) -> bool:
    """True if a program has succeeded; a daemon must still be there, and is ended."""
    if (left := re.search(rf"{REACHED} (\d+)", printed)) is None:
        return REACHED in printed
    pid = int(left[1])
    if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def table(before: dict[str, bool], after: dict[str, bool]) -> str:
    """As Markdown."""
    words = {True: "**reached**", False: "no"}
    rows = [f"| {name} | {words[before[name]]} | {words[after[name]]} |" for name in before]
    return "\n".join(["| what is tried | process with limits | sandbox |", "|---|---|---|", *rows]) + "\n"


def documented() -> dict[str, str]:
    """Documented results of the sandbox, by attempt."""
    lines = TABLE_IN.read_text().partition(BEGIN)[2].partition(END)[0].splitlines()[2:]
    return {cells[1].strip(): cells[3].strip() for line in lines if (cells := line.split("|"))}


def main() -> None:
    """Write the table into the documentation."""
    os.environ["AREAL_REACH_PROBE"] = "x"
    place = Path(tempfile.mkdtemp())
    with surroundings(place) as there:
        tried = deeds(there)
        before = {name: reached(with_limits_only(code)) for name, code in tried.items()}
        after = {name: reached(asyncio.run(in_the_sandbox(code))) for name, code in tried.items()}
    shutil.rmtree(place)
    text = TABLE_IN.read_text()
    first, _, rest = text.partition(BEGIN)
    TABLE_IN.write_text(first + BEGIN + table(before, after) + END + rest.partition(END)[2])
    sys.stdout.write(table(before, after))


if __name__ == "__main__":
    main()
