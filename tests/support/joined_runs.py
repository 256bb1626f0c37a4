"""Runs that another host may join, and the credential with which it does."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.live_run import PATIENT, RECIPE, LiveRun
from support.other_host import OtherHost

Start = Callable[..., LiveRun]


@contextmanager
def runs_beside(other: OtherHost, folder: Path) -> Iterator[Start]:
    """Yields what starts a run, with its settings, that another host reaches; runs that are left are ended."""
    runs: list[LiveRun] = []

    def start(*settings: str, recipe: Path = RECIPE, small: bool = True) -> LiveRun:
        address = other.run_address
        runs.append(
            LiveRun(folder, f"bus.host={address}", f"gateway.host={address}", *settings, recipe=recipe, small=small)
        )
        return runs[-1]

    yield start
    for run in runs:
        run.abort()


async def invited(run: LiveRun, other: OtherHost) -> Path:
    """The credential of a run, copied to the other host."""
    until = time.monotonic() + PATIENT
    while not (file := run.folder / "join.json").exists():
        assert run.process.poll() is None, run.output()
        assert time.monotonic() < until, run.output()
        await asyncio.sleep(0.05)
    return Path(shutil.copy(file, other.folder / "join.json"))
