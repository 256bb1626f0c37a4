"""The clock of the machine jumps forward and back, by up to a month, while a run lives, between its lives and after a
resumption."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.live_run import LiveRun

from areal_actors.messages import StepCompleted

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
FIRST_LIFE = ((1, "+1h"), (2, "-2h"), (3, "+30d"))
"""Jumps of the clock after these steps."""
BETWEEN = "-1d"
SECOND_LIFE = ((5, "+90s"), (6, "-30m"), (7, "+2h"))
STEPS = 8

pytestmark = [pytest.mark.long, pytest.mark.skipif(LIBRARY is None, reason="needs libfaketime: `apt install faketime`")]


@pytest.fixture
def jump(tmp_path, monkeypatch):
    """Sets the clock of the processes that are started; the monotonic one goes on, as that of a machine does."""
    offset = tmp_path / "offset"

    def jump(to):
        (tmp_path / "next").write_text(f"{to}\n")
        (tmp_path / "next").replace(offset)

    jump("+0")
    variables = {"LD_PRELOAD": str(LIBRARY), "FAKETIME_TIMESTAMP_FILE": str(offset)}
    for name, value in (variables | {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_CACHE_DURATION": "1"}).items():
        monkeypatch.setenv(name, value)
    return jump


async def test_a_run_ends_with_every_step_done_once_however_the_clock_jumps(jump, tmp_path):
    run = LiveRun(tmp_path / "runs", f"steps={STEPS}", "checkpoint.every_steps=2")
    try:
        async with run.listening():
            for step, to in FIRST_LIFE:
                await run.until(StepCompleted, step)
                jump(to)
            await run.until(StepCompleted, 4)
            run.abort()
        jump(BETWEEN)
        (run.folder / "bus.json").unlink()  # that of the killed launcher
        run.resume()
        async with run.listening():
            for step, to in SECOND_LIFE:
                await run.until(StepCompleted, step)
                jump(to)
            assert await run.ended() == 0, run.output()
        log = [event for _, event in await run.log()]
    finally:
        run.abort()
    assert sorted({event.step for event in log if isinstance(event, StepCompleted)}) == list(range(1, STEPS + 1))
