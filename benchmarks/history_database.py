"""Commands that read a run with many episodes.

CPU seconds without, with and with a damaged `history.sqlite`, and its size beside the log.
    python benchmarks/history_database.py [--episodes 20000] [--before CHECKOUT]

A made-up run with episodes of two calls, in groups of eight, is written to the log of a run's folder. Each command runs
with the database deleted, damaged, half-written (its writer was killed), of an older version, and up to date; with
`--before`, also in another checkout. Seconds are CPU seconds of the command and of the nats-server that it starts.
`page` is `areal-actors view` from its start to the first answer with all rows of the run; then, in seconds, an episode
and its advantages. `compare FILE` compares the
run with its exported log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from history import ROOT, append, parse_arguments, table
from startup import children_seconds
from web_page import GROUP, GROUPS, events

from areal_actors.core.devices import CudaDevices
from areal_actors.folder.run_folder import RunFolder
from areal_actors.history.database import DATABASE, HEADER
from areal_actors.messages import KINDS, RunStarted, WeightsPublished
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe
from areal_bus.base import Stamp
from areal_bus.message import Event
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

QUICK = {"episodes": 256}
NAME = "made-up"
EPISODE = 40
"""Number of the attempt whose page is opened."""
LONGEST_SECONDS = 900.0
KILL_AFTER = 0.5
"""Share of the seconds of a whole build after which its process is killed."""


class At:
    """Context of an event at this time."""

    replayed = False

    def __init__(self, now: float) -> None:
        self.sent = now


def made_recipe(episodes: int) -> Recipe:
    """Returns the main recipe with as many steps as these episodes make."""
    steps = max(episodes // (GROUP * GROUPS), 1)
    words = [f"run={NAME}", f"steps={steps}", f"algorithm.group_size={GROUP}", f"trainer.batch_size={GROUPS}"]
    return load(
        [ROOT / "recipes" / "gsm8k_grpo.toml"], [*words, "profile=embedded"], CudaDevices(0, "none is asked for")
    ).recipe


async def write_run(place: RunFolder, episodes: int) -> int:
    """Write the folder of a run, with its log; returns the number of events."""
    recipe = made_recipe(episodes)
    place.create(recipe)
    metrics, number = Metrics(place.metrics), 0
    server = await EmbeddedServer.start(place.nats)
    bus = await NatsBus.connect(server.url, NAME, name="benchmark", token=server.token, blobs=place.blobs)
    await bus.provision(KINDS)
    for number, event in enumerate(events(episodes), start=1):
        at = 1.7e9 + number / 100
        whole: Event = event
        if isinstance(event, RunStarted):
            whole = msgspec.structs.replace(event, recipe=msgspec.to_builtins(recipe))
        elif isinstance(event, WeightsPublished):  # there is no tokenizer: tokens have no texts
            whole = msgspec.structs.replace(event, location=msgspec.structs.replace(event.location, model=""))
        await bus.publish(whole, Stamp(id=f"m{number}", sender=NAME, time=at))
        if type(whole) in Metrics.handlers:
            metrics.write(whole, At(at))
    await bus.close()
    await server.stop()
    return number


def cpu_seconds(words: Sequence[str], checkout: Path = ROOT) -> float:
    """Returns the CPU seconds of a command of a checkout.

    Raises:
        CalledProcessError: it failed.
    """
    before = children_seconds()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "areal_actors", *words]
    subprocess.run(
        command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=LONGEST_SECONDS
    )
    spent = children_seconds() - before
    print(f"{spent:.2f} CPU seconds: {' '.join(words[:3])}, in {checkout}", flush=True)
    return spent


def ask(url: str, path: str) -> Any:
    """Returns the answer of a page."""
    with urllib.request.urlopen(url + path) as answer:  # noqa: S310 - of a process of this machine
        return json.loads(answer.read())


def page_seconds(folder: Path, last: int, checkout: Path = ROOT) -> tuple[float, dict[str, float]]:
    """Returns the CPU seconds of `areal-actors view` until it has sent all rows of a log with this many events.

    Also the seconds until then, and from then on of the requests for an episode and for its advantages.
    """
    before, began = children_seconds(), time.perf_counter()
    command = [sys.executable, "-m", "areal_actors", "view", NAME, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        while ask(url, "api/run")["head"]["last"] < last:
            time.sleep(0.2)
        assert ask(url, "api/rows?after=0")["head"]["last"] == last
        seconds = {"open": time.perf_counter() - began}
        spent = children_seconds() - before + sum(psutil.Process(process.pid).cpu_times()[:4])
        for name, path in (("episode", f"api/episode/{EPISODE}"), ("advantages", f"api/episode/{EPISODE}/trained")):
            start = time.perf_counter()
            assert "error" not in ask(url, path)
            seconds[name] = time.perf_counter() - start
        process.send_signal(signal.SIGINT)
        process.wait(60)
    figures = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    print(f"{spent:.2f} CPU seconds: view {NAME}, in {checkout}; {figures}", flush=True)
    return spent, seconds


# ---------------------------------------------------------------- states of the database


def delete(path: Path) -> None:
    """Delete the database."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def damage(path: Path) -> None:
    """Change a byte in the middle."""
    content = bytearray(path.read_bytes())
    content[max(len(content) // 2, HEADER)] ^= 0xFF
    path.write_bytes(content)


def make_old(path: Path) -> None:
    """Make it one of an older version of the schema."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 0")
    connection.close()


def leave_half_written(path: Path, seconds: float) -> None:
    """Kill a command while it builds the database."""
    delete(path)
    words = [sys.executable, "-m", "areal_actors", "show", NAME, "--folder", str(path.parent.parent)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.kill()
    process.wait()


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Write a run, and time the commands."""
    with tempfile.TemporaryDirectory() as temporary:
        place = RunFolder(Path(temporary) / NAME)
        count = asyncio.run(write_run(place, options.episodes))
        log = sum(file.stat().st_size for file in place.nats.rglob("*.blk"))
        database = place.path / DATABASE
        where, exported = ["--folder", temporary], f"{temporary}/made-up.log"
        commands = {
            "show": ["show", NAME, *where],
            "show EPISODE": ["show", NAME, "3.1", *where],
            "show EPISODE --trace": ["show", NAME, "3.1", "--trace", *where],
            "why": ["why", NAME, *where],
            "compare": ["compare", NAME, str(place.path), *where],
            "compare FILE": ["compare", NAME, exported, *where],
        }
        cpu_seconds(["export", NAME, exported, *where])
        began = time.perf_counter()
        figures: dict[str, dict[str, float]] = {"show": {"deleted": cpu_seconds(commands["show"])}}
        wall = time.perf_counter() - began
        states: dict[str, Callable[[], None]] = {
            "damaged": lambda: damage(database),
            "half-written": lambda: leave_half_written(database, wall * KILL_AFTER),
            "older": lambda: make_old(database),
        }
        for name, spoil in states.items():
            spoil()
            figures["show"][name] = cpu_seconds(commands["show"])
        size = database.stat().st_size
        for name, words in commands.items():
            figures.setdefault(name, {})["first"] = cpu_seconds(words)
            figures[name]["up to date"] = cpu_seconds(words)
        figures["page"], page = {}, {}
        figures["page"]["up to date"], page["up to date"] = page_seconds(Path(temporary), count)
        delete(database)
        figures["page"]["deleted"], page["deleted"] = page_seconds(Path(temporary), count)
        if options.before:
            for name, words in commands.items():
                figures[name]["before"] = cpu_seconds(words, options.before)
            figures["page"]["before"], _ = page_seconds(Path(temporary), count, options.before)
        shutil.rmtree(place.path)
    return {
        "episodes": options.episodes,
        "events": count,
        "log_bytes": log,
        "database_bytes": size,
        "cpu_seconds": figures,
        "page_seconds": page,
    }


COLUMNS = ("before", "deleted", "damaged", "half-written", "older", "first", "up to date")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--before", type=Path, default=None, help="another checkout, whose commands are timed, too")
    options = parse_arguments(parser, QUICK)
    figures = measure(options)
    print(
        f"{figures['events']:,} events; log {figures['log_bytes']:,} bytes, database {figures['database_bytes']:,}"
        " bytes; CPU seconds:"
    )
    seconds: dict[str, dict[str, float]] = figures["cpu_seconds"]  # type: ignore[assignment]
    rows = [
        [name, *(f"{values[column]:.2f}" if column in values else "" for column in COLUMNS)]
        for name, values in seconds.items()
    ]
    print(table(("command", *COLUMNS), rows))
    if not options.no_history:
        print(append("history_database", figures))


if __name__ == "__main__":
    main()
