"""Bytes of an episode in the log and on the wire, by kind of message and per trained token.

    python benchmarks/log_bytes.py [--cases short long turns] [--episodes 512]

A whole run as in `orchestration.py`, with an engine that draws token ids and log-probabilities at random. `store` is
the size of the log over the number of exported episodes, and `compressed`, with `--compress`, that size in the
proportion to which complete blocks of the log were compressed. `sent` is what the processes sent to the server, and
`received` what it sent to them, by its own count and without this program's connection: an event goes to every process
that handles its kind. Rows of messages are of events in the log: number, bytes as they were sent, bytes of the envelope
(`whole`), and microseconds of CPU to pack and to unpack one.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import uvloop
from history import append, parse_arguments, table
from orchestration import EPISODES_A_STEP, LONGEST_SECONDS, RUN, SERVER, begin, count_reached, recipe, system

from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import KINDS, TrajectoryExported, recorded_calls
from areal_bus.nats import NatsBus
from areal_bus.payload import pack, unpack

CONCURRENCY = 16
QUICK = {"episodes": 64, "cases": ["short"]}
COLUMNS = (
    "trained_tokens",
    "store",
    "compressed",
    "sent",
    "received",
    "store_a_token",
    "compressed_a_token",
    "sent_a_token",
    "received_a_token",
)
READ_TOGETHER = 256
BLOCK_BYTES = 8 << 20
"""Size at which the server begins another block of a log."""
LEAST_EPISODES = 16
REPORT_SECONDS = 1.5
"""Time after which the log has every call that was completed before it."""
OWN_CONNECTION = "benchmark"
"""Name of this program's connection, which asks the server how far the run is, and so receives much."""
REPEATS = 200
BY_SUBJECT = {kind.subject: kind for kind in KINDS}
LEAST_SHARE = 0.005
"""Share of the store above which a kind of message is shown."""


@dataclass(frozen=True)
class Case:
    """An episode: its calls, the tokens of each answer, and the words of the user between two of them."""

    calls: int
    tokens: int
    reply_words: int = 0

    @property
    def trained(self) -> int:
        """Tokens that are trained."""
        return self.calls * self.tokens


CASES = {"short": Case(1, 33), "long": Case(1, 1000), "turns": Case(50, 40, 60)}


async def measure(case: Case, episodes: int, folder: Path, *, compress: bool = False) -> dict[str, Any]:
    """Run episodes of a case; returns bytes an episode."""
    tables = {
        "generation": {
            "engine": "scripted",
            "max_model_len": 65536,
            "scripted": {"shortest": case.tokens, "longest": case.tokens},
        },
        "sampling": {"max_tokens": case.tokens},
        "log": {"compress": compress},
    }
    plan = recipe(
        CONCURRENCY,
        1 + episodes // EPISODES_A_STEP,
        folder,
        {"calls": case.calls, "reply_words": case.reply_words},
        **tables,
    )
    place = RunFolder(folder / RUN)
    async with asyncio.timeout(LONGEST_SECONDS), system(plan, place) as (bus, running):
        before = traffic(place, running[SERVER])
        await begin(bus, plan, folder)
        await count_reached(bus, TrajectoryExported, episodes)
        sent, received = (now - was for now, was in zip(traffic(place, running[SERVER]), before, strict=True))
        until = time.time()
        await asyncio.sleep(REPORT_SECONDS)
        kinds, calls = await sizes(bus, until)
        run = calls / case.calls  # those of unfinished episodes, too
        log = bus.streams.log
        state = (
            await bus.streams.api(
                f"STREAM.INFO.{log}", {"subjects_filter": bus.streams.prefix + TrajectoryExported.subject}
            )
        )["state"]
        stored = state["bytes"] / sum(state["subjects"].values())
    files = sorted(
        (file for file in (place.nats / "store").rglob("*.blk") if log in file.parts), key=lambda file: int(file.stem)
    )
    complete = sum(file.stat().st_size for file in files[:-1])
    share = complete / (BLOCK_BYTES * (len(files) - 1)) if compress and complete else None
    read = kinds[TrajectoryExported.subject].number
    return {
        "trained_tokens": case.trained,
        "store": round(stored),
        "store_a_token": round(stored / case.trained, 1),
        "compressed": None if share is None else round(share * stored),
        "compressed_a_token": None if share is None else round(share * stored / case.trained, 1),
        "sent": round(sent / run),
        "sent_a_token": round(sent / run / case.trained, 1),
        "received": round(received / run),
        "received_a_token": round(received / run / case.trained, 1),
        "kinds": {kind: found.each(read) for kind, found in kinds.items()},
    }


def traffic(place: RunFolder, server: psutil.Process) -> tuple[int, int]:
    """Bytes that the server has received from the run's processes and sent to them."""
    ports = msgspec.json.decode((place.nats / f"nats-server_{server.pid}.ports").read_bytes())
    address = f"{ports['monitoring'][0]}/connz"
    # Of the server on this machine
    with urllib.request.urlopen(address, timeout=LONGEST_SECONDS) as answer:  # noqa: S310
        connections = msgspec.json.decode(answer.read())["connections"]
    of_run = [connection for connection in connections if connection["name"] != OWN_CONNECTION]
    return sum(one["in_bytes"] for one in of_run), sum(one["out_bytes"] for one in of_run)


@dataclass
class Sizes:
    """Messages of one kind."""

    number: int = 0
    bytes: int = 0
    whole: int = 0
    sample: bytes = b""

    def each(self, episodes: int) -> dict[str, float]:
        """Number an episode, and means of a message; the time is that of one of them."""
        envelope = unpack(self.sample, where="a sample")
        kind = BY_SUBJECT[envelope.subject]
        return {
            "number": round(self.number / episodes, 2),
            "bytes": round(self.bytes / self.number),
            "whole": round(self.whole / self.number),
            "pack_us": microseconds(lambda: pack(envelope, kind)),
            "unpack_us": microseconds(lambda: unpack(self.sample, where="a sample")),
        }


def microseconds(call: Callable[[], object]) -> float:
    """CPU time of a call."""
    began = time.process_time()
    for _ in range(REPEATS):
        call()
    return round(1e6 * (time.process_time() - began) / REPEATS, 1)


async def sizes(bus: NatsBus, until: float) -> tuple[dict[str, Sizes], int]:
    """The log's messages, by kind; and the number of model calls that were completed until then."""
    found: dict[str, Sizes] = defaultdict(Sizes)
    calls = 0
    last = await bus.streams.last_sequence()
    for start in range(1, last + 1, READ_TOGETHER):
        for message in await bus.streams.read(range(start, min(start + READ_TOGETHER, last + 1))):
            kind = (message.headers or {})["Nats-Subject"].removeprefix(bus.streams.prefix)
            one = found[kind]
            one.number, one.bytes, one.sample = one.number + 1, one.bytes + len(message.data), message.data
            envelope = unpack(message.data, where=kind)
            one.whole += len(msgspec.msgpack.encode(envelope))
            calls += sum(call.time <= until for call in recorded_calls(envelope.open(BY_SUBJECT[kind])))
    return dict(sorted(found.items(), key=lambda one: -one[1].bytes)), calls


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument(
        "--compress", action="store_true", help="complete blocks of the log: needs 4,000 short episodes to have one"
    )
    arguments = parse_arguments(parser, QUICK)
    found: dict[str, dict[str, Any]] = {}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for name in arguments.cases:
            with tempfile.TemporaryDirectory() as temporary:
                episodes = max(arguments.episodes // CASES[name].calls, LEAST_EPISODES)
                found[name] = runner.run(measure(CASES[name], episodes, Path(temporary), compress=arguments.compress))
    print(
        table(
            ["bytes an episode", *COLUMNS],
            [[name, *(case[column] for column in COLUMNS)] for name, case in found.items()],
        )
    )
    for name, case in found.items():
        shown = [
            (kind, one)
            for kind, one in case["kinds"].items()
            if one["number"] * one["bytes"] > LEAST_SHARE * case["store"]
        ]
        print()
        print(table([name, *shown[0][1]], [[kind, *one.values()] for kind, one in shown]))
    if not arguments.no_history:
        append("log_bytes", {"episodes": arguments.episodes, "compress": arguments.compress, "cases": found})


if __name__ == "__main__":
    main()
