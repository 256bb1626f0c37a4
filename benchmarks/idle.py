"""CPU time of a run that does nothing: every agent sleeps, and no token is sampled.

    python benchmarks/idle.py [--seconds 60] [--settle 15] [--root DIR]

Starts the main recipe with an agent that sleeps, waits until all episodes that may run at once do, and reads the CPU
time of every process of the run from the operating system before and after. `--root` measures the code of another
checkout, to alternate two of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil
from history import ROOT, append, busy_seconds, others_share, parse_arguments, table

from areal_actors.processes.fork_server import FORK_SERVER

AGENT = Path(__file__).with_name("sleeping_agent.py")
SETTINGS = (
    "profile=embedded",
    f"task.agent={AGENT}:SleepingAgent",
    "task.timeout_seconds=3600",
    "task.held_out=4",
    "evaluation.tasks=0",
    "warm_start.steps=10",
    "warm_start.tail_steps=2",
)
PROCESSES = 5
"""Least number of processes of the run besides those that fork others: before, it is still starting."""
START_SECONDS = 300.0
QUICK = {"seconds": 3.0, "settle": 3.0}


def command(root: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start the run with the code of a checkout."""
    words = [sys.executable, "-m", "areal_actors", "run", str(ROOT / "recipes/gsm8k_grpo.toml"), *SETTINGS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "bus")]), "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [*words, f"folder={folder}"],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def name_of(process: psutil.Process, top: int) -> str:
    """The part of the run that a process is: the last word of its command."""
    if process.pid == top:
        return "supervisor"
    words = process.cmdline()
    return "nats-server" if "nats-server" in process.name() else words[-1] if words else process.name()


def cpu_seconds(top: int) -> dict[tuple[int, str], float]:
    """CPU seconds of each process of the run so far."""
    parent = psutil.Process(top)
    found = {}
    for process in [parent, *parent.children(recursive=True)]:
        try:
            times = process.cpu_times()
            found[process.pid, name_of(process, top)] = times.user + times.system
        except psutil.Error:
            continue
    return found


def wait_until_served(run: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the run's processes are there."""
    until = time.monotonic() + START_SECONDS
    while sum(name != FORK_SERVER for _, name in cpu_seconds(run.pid)) < PROCESSES:
        if run.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the run did not start:\n{(folder / 'output').read_text()[-4000:]}")
        time.sleep(0.5)


def measure(root: Path, seconds: float, settle: float) -> tuple[dict[str, float], float]:
    """CPU milliseconds a second of each part of the run, and the share of the machine that others used."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = command(root, folder)
        try:
            wait_until_served(run, folder)
            time.sleep(settle)
            before, busy, began = cpu_seconds(run.pid), busy_seconds(), time.monotonic()
            time.sleep(seconds)
            after, lasted = cpu_seconds(run.pid), time.monotonic() - began
            busy = busy_seconds() - busy
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(60)
    parts: dict[str, float] = defaultdict(float)
    for process, total in after.items():
        parts[process[1]] += 1000 * (total - before.get(process, total)) / lasted
    return dict(parts), others_share(busy, sum(parts.values()) / 1000 * lasted, lasted)


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the measurement")
    parser.add_argument("--settle", type=float, default=15.0, help="seconds before it, after all processes are there")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout whose code is measured")
    arguments = parse_arguments(parser, QUICK)
    parts, others = measure(arguments.root.resolve(), arguments.seconds, arguments.settle)
    total = sum(parts.values())
    rows: list[list[object]] = [[name, value] for name, value in sorted(parts.items(), key=lambda part: -part[1])]
    print(table(["process", "CPU ms a second"], [*rows, ["all", total], ["others' share of the machine", others]]))
    if not arguments.no_history and arguments.root == ROOT:
        figures = {name: round(value, 2) for name, value in parts.items()}
        append("idle", {"cpu_ms_a_second": figures, "all": round(total, 2), "others": round(others, 3)})


if __name__ == "__main__":
    main()
