"""The process that repeats the steps of a log: an end that is none of its results is an error."""

from __future__ import annotations

import tempfile

import psutil
import pytest

from areal_actors.reader.audit_command import recomputation


async def last_error(log, end=lambda: None):
    async with recomputation(1) as recomputed:
        results = recomputed(log, log, 3)
        end()
        return [result async for result in results][-1].error


def kill_it():
    (child,) = [child for child in psutil.Process().children() if "areal_actors.replay.recompute" in child.cmdline()]
    child.kill()


async def test_a_process_that_is_killed_is_an_error_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert await last_error(tmp_path / "log", kill_it) == "the process that repeats the steps was killed by SIGKILL"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_an_exception_of_the_process_is_an_error(tmp_path):
    assert "ended with status 1" in await last_error(tmp_path / "no log")
