"""Resources that a model's program reaches from the agents' tool, and the behaviour of the tool."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import sandbox_reach as reach

from areal_actors.core.errors import SandboxError
from areal_actors.sandbox import Limits, programs, run_python
from areal_actors.sandbox.guest import ARCHITECTURES
from areal_actors.sandbox.tool import LONGEST_OUTPUT

LINUX = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in ARCHITECTURES, reason="the kernel shuts programs in"
)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[reach.Surroundings]:
    monkeypatch.setenv("AREAL_REACH_PROBE", "x")
    with reach.surroundings(tmp_path) as made:
        yield made


@LINUX
async def test_nothing_of_the_run_or_the_machine_is_reached_from_the_sandbox(there: reach.Surroundings) -> None:
    printed = {name: await reach.in_the_sandbox(code) for name, code in reach.deeds(there).items()}
    assert {name: words for name, words in printed.items() if reach.reached(words)} == {}
    assert reach.documented() == dict.fromkeys(printed, "no"), (
        "python tests/support/sandbox_reach.py writes the table anew"
    )
    assert not (there.folder.path / "planted").exists()


def test_the_attempts_succeed_where_nothing_shuts_them_in(there: reach.Surroundings) -> None:
    deeds = reach.deeds(there)
    for name in ("files: the secret of the run", "files: writing beside its folder", "disk: 64 MB"):
        assert reach.reached(reach.with_limits_only(deeds[name], seconds=60)), name


@LINUX
@pytest.mark.parametrize("seconds", [30.0])
async def test_a_program_that_fills_the_disk_is_ended_with_an_error(seconds: float) -> None:
    filling = "number = 0\nwhile True:\n  number += 1\n  open(str(number), 'wb').write(bytes(40 << 10))"
    for limits in (Limits(seconds=seconds, disk_mb=1), Limits(seconds=seconds, files=10)):
        assert f"more than {limits.files} files or {limits.disk_mb} MB" in await run_python(filling, limits=limits)


async def test_the_event_loop_continues_while_programs_run() -> None:
    running = [
        asyncio.create_task(run_python("import time; time.sleep(1)", limits=Limits(seconds=20))) for _ in range(3)
    ]
    beats = 0
    while not all(task.done() for task in running):
        await asyncio.sleep(0.01)
        beats += 1
    assert beats > 5
    assert {await task for task in running} == {"the program printed nothing and ended with 0"}


async def test_cancelling_the_call_kills_the_program_at_once() -> None:
    running = asyncio.create_task(run_python("import time; time.sleep(600)", limits=Limits(seconds=600)))
    until = time.monotonic() + 300
    while not (
        children := [child for child in psutil.Process().children() if "sandbox/guest" in " ".join(child.cmdline())]
    ):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []


async def test_calls_leave_no_descriptors_and_no_threads() -> None:
    await run_python("print(1)")
    process = psutil.Process()
    before = process.num_fds()
    for _ in range(5):
        await run_python("print(1)")
    assert process.num_fds() <= before


async def test_what_is_printed_is_cut_and_errors_are_part_of_it() -> None:
    assert await run_python("print(input())", stdin="42") == "42\n"
    assert "ZeroDivisionError" in await run_python("1 / 0")
    assert len(await run_python("while True: print('x' * 1000)")) == LONGEST_OUTPUT


async def test_no_sandbox_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "GUEST", Path("/no/such/guest.py"))
    with pytest.raises(SandboxError, match="did not start"):
        await run_python("print(1)")
