"""Another host, for tests: processes with a network, shared memory, home and temporary folder of their own.

As root on Linux it is a network namespace behind a virtual cable, in which the run's folder and this machine's shared
memory are hidden; elsewhere only home and temporary folder are separate.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

PATIENT = 400.0
NUMBERS = count(os.getpid() % 200)


def _quietly(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _can_isolate() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    if not _quietly("ip", "netns", "add", probe := f"areal-probe-{os.getpid()}"):
        return False
    mounts = _quietly("ip", "netns", "exec", probe, "unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    return _quietly("ip", "netns", "del", probe) and mounts


ISOLATED = _can_isolate()


class OtherHost:
    """A host beside this one; a context that removes it."""

    def __init__(self, folder: Path, hidden: Path) -> None:
        """`hidden`: folder that it does not have."""
        self.folder, self.hidden = folder, hidden
        number = next(NUMBERS) % 200 + 20
        self.name = f"areal-{number}"
        self.cable = f"cable{number}"
        self.run_address = f"10.77.{number}.1" if ISOLATED else "127.0.0.1"
        """Address of this host, as the other one reaches it."""
        self.address = f"10.77.{number}.2" if ISOLATED else "127.0.0.1"
        self.processes: list[subprocess.Popen[bytes]] = []
        for name in ("home", "tmp"):
            (folder / name).mkdir(parents=True)

    def __enter__(self) -> Self:
        if ISOLATED:
            inside = f"{self.cable}b"
            for command in (
                f"ip netns add {self.name}",
                f"ip link add {self.cable} type veth peer name {inside} netns {self.name}",
                f"ip addr add {self.run_address}/24 dev {self.cable}",
                f"ip link set {self.cable} up",
                f"ip -n {self.name} addr add {self.address}/24 dev {inside}",
                f"ip -n {self.name} link set {inside} up",
                f"ip -n {self.name} link set lo up",
            ):
                subprocess.run(command.split(), check=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            for one in (process, *self._below(process)):
                try:
                    one.kill()
                except (OSError, psutil.Error):
                    continue
            process.wait()
        if ISOLATED:
            _quietly("ip", "link", "del", self.cable)
            _quietly("ip", "netns", "del", self.name)

    def pull_cable(self, *, out: bool) -> None:
        """Cut the network, or restore it."""
        subprocess.run(["ip", "link", "set", self.cable, "down" if out else "up"], check=True)

    async def logged(self, worker: str, words: str) -> None:
        """Wait until a worker's log has these words."""
        until = time.monotonic() + PATIENT
        while not any(
            words in log.read_text() for log in (self.folder / "tmp").glob(f"areal-join-*/logs/{worker}.jsonl")
        ):
            assert time.monotonic() < until, f"{worker} has not logged {words!r}"
            await asyncio.sleep(0.1)

    def join(self, *words: str, root: Path | None = None, **variables: str) -> Joiner:
        """`areal-actors join` on this host; `root`: where its areal-actors lies."""
        number = len(self.processes)
        output = self.folder / f"join-{number}.txt"
        environment = {
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "PATH": os.environ["PATH"],
            **({"PYTHONPATH": str(root)} if root is not None else {}),
            **variables,
        }
        command = [sys.executable, "-m", "areal_actors", "join", *words]
        if ISOLATED:
            hide = (
                f"mount --make-rprivate / && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs '{self.hidden}' &&"
                ' exec "$@"'
            )
            command = ["ip", "netns", "exec", self.name, "unshare", "-m", "sh", "-c", hide, "sh", *command]
        self.hidden.mkdir(parents=True, exist_ok=True)
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=root or self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return Joiner(process, output)

    def _below(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        try:
            return psutil.Process(process.pid).children(recursive=True)
        except psutil.Error:
            return []


class Joiner:
    """One `areal-actors join`."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process, self._output = process, output

    def output(self) -> str:
        """Returns its output so far."""
        return self._output.read_text(errors="replace")

    def worker(self) -> psutil.Process:
        """The process of its first worker."""
        return next(
            one
            for one in psutil.Process(self.process.pid).children(recursive=True)
            if "areal_actors.processes" in " ".join(one.cmdline())
        )

    def ended(self, seconds: float = PATIENT) -> int:
        """Wait for its end; returns its exit status."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, f"it has not ended: {self.output()}"
            time.sleep(0.1)
        return self.process.returncode
