"""Cost of monitors: the main recipe with none, one and many connections that receive every message.

    PYTHONPATH=benchmarks python benchmarks/archive/monitors.py [--monitors 0 1 20] [--repeats 3] [--steps 12]
        [--seed 0] [--apart] [SETTING ...]

The runs alternate. With more than two monitors one is a stopped process (SIGSTOP) and one takes a second for each
message; the others are connections of one process with the lowest priority, as monitors usually have another machine.
`steps` are the seconds from the first optimizer step to the last; CPU seconds are those of the run's actors, and of
nats-server, which copies the messages, with the supervisor. With `--apart` the monitors have the last core for
themselves and the run has the others, with and without monitors: as if they were on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from history import LONGEST_SECONDS, ROOT, SMALL, append, busy_seconds, others_share, parse_arguments, table
from seeds import RECIPE
from startup import children_seconds

QUICK = {"monitors": [0, 3], "repeats": 1, "steps": 2, "settings": list(SMALL)}
HELPER = Path(__file__).with_name("monitors_process.py")
SLOW_SECONDS = 1.0
STOP_AFTER_SECONDS = 4.0
"""Seconds after the start of the hung monitor: it has subscribed by then."""
END_SECONDS = 60.0


class Outcome(msgspec.Struct, frozen=True):
    """Figures of one run."""

    monitors: int
    wall: float
    steps: float
    """Seconds from the first optimizer step to the last."""
    cpu: float
    """CPU seconds of the run's actors."""
    server: float
    """CPU seconds of nats-server and of the supervisor."""
    monitoring: float
    """CPU seconds of the monitors."""
    received: tuple[int, ...]
    """Messages that the monitors received which neither hang nor are slow."""
    others: float
    """Share of the machine's CPU that other processes used."""


def keep_apart(process: subprocess.Popen[Any], options: argparse.Namespace, *, of_run: bool) -> None:
    """Keep a process that has just started, and those that it starts, to its cores."""
    every = sorted(os.sched_getaffinity(0))
    if options.apart:
        os.sched_setaffinity(process.pid, every[:-1] if of_run else every[-1:])


@contextmanager
def monitored(run: Path, monitors: int, options: argparse.Namespace) -> Iterator[list[subprocess.Popen[str]]]:
    """Start monitors; the first process in the list has those that read at once."""
    kinds = [(monitors, 0.0)] if monitors <= 2 else [(monitors - 2, 0.0), (1, SLOW_SECONDS), (1, 0.0)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(HELPER), str(run), str(number), str(pause)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number, pause in kinds
        if number
    ]
    try:
        for process in processes:
            keep_apart(process, options, of_run=False)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def measure(monitors: int, name: str, folder: Path, options: argparse.Namespace) -> Outcome:
    """Run the recipe once beside this number of monitors.

    Raises:
        CalledProcessError: the run failed.
    """
    run = folder / name
    command = [
        sys.executable,
        "-m",
        "areal_actors",
        "run",
        str(RECIPE),
        "profile=embedded",
        f"run={name}",
        f"folder={folder}",
    ]
    command += [f"steps={options.steps}", f"seed={options.seed}", "evaluation.every_steps=0", *options.settings]
    before, busy, began = children_seconds(), busy_seconds(), time.monotonic()
    with monitored(run, monitors, options) as processes:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        keep_apart(process, options, of_run=True)
        if monitors > 2:
            stop_when_subscribed(processes[-1], run)
        if process.wait(LONGEST_SECONDS):
            raise subprocess.CalledProcessError(process.returncode, command)
        wall, used = time.monotonic() - began, children_seconds() - before
        received = json.loads(processes[0].communicate(timeout=END_SECONDS)[0]) if processes else []
    after = children_seconds() - before
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    times = [line["time"] for line in lines if line["kind"] == "step.completed"]
    actors = sum(each["cpu_seconds"] for each in json.loads((run / "usage.json").read_text(encoding="utf-8")).values())
    busy = busy_seconds() - busy
    return Outcome(
        monitors=monitors,
        wall=wall,
        steps=times[-1] - times[0],
        cpu=actors,
        server=used - actors,
        monitoring=after - used,
        received=tuple(received),
        others=others_share(busy, after, wall),
    )


def stop_when_subscribed(process: subprocess.Popen[str], run: Path) -> None:
    """Stop the monitor for ever, once it has had time to subscribe."""
    end = time.monotonic() + END_SECONDS
    while not (run / "monitor.json").exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(STOP_AFTER_SECONDS)
    os.kill(process.pid, signal.SIGSTOP)


HEADER = (
    "monitors",
    "wall s",
    "steps s",
    "CPU s, actors",
    "CPU s, server",
    "CPU s, monitors",
    "messages each",
    "others' CPU",
)


def row(monitors: int, outcomes: Sequence[Outcome]) -> list[object]:
    """Return a line of the table: medians of the runs with this number of monitors."""
    ran = [one for one in outcomes if one.monitors == monitors]
    medians = [
        statistics.median(getattr(one, name) for one in ran)
        for name in ("wall", "steps", "cpu", "server", "monitoring")
    ]
    messages = min((count for one in ran for count in one.received), default=0)
    return [monitors, *(f"{value:.2f}" for value in medians), f"{messages:,}", f"{max(one.others for one in ran):.2f}"]


def main() -> None:
    """Measure, print a table and append a line to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=[], metavar="SETTING")
    parser.add_argument("--monitors", type=int, nargs="+", default=[0, 1, 20])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--apart", action="store_true", help="monitors have a core of their own, on Linux")
    options = parse_arguments(parser, QUICK)
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if not options.quick:
            measure(0, "first", folder, options)
        for repeat in range(options.repeats):
            for monitors in options.monitors:
                outcomes.append(measure(monitors, f"with-{monitors}-{repeat}", folder, options))
                print(msgspec.json.encode(outcomes[-1]).decode(), flush=True)
    print(table(HEADER, [row(monitors, outcomes) for monitors in options.monitors]))
    if not options.no_history:
        print(
            append(
                "monitors",
                {
                    "steps": options.steps,
                    "apart": options.apart,
                    "settings": options.settings,
                    "runs": msgspec.to_builtins(outcomes),
                },
            )
        )


if __name__ == "__main__":
    main()
