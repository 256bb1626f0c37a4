"""Processes of inference servers, to be stopped and killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def server_processes(parent: int) -> list[psutil.Process]:
    """All processes of the servers below a process."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.Error):
            if "areal_actors.generation.servers.process_guard" in process.cmdline():
                found += process.children(recursive=True)
    assert found
    return found
