"""Memory of open sessions of ten turns, and CPU time of their export, at gateways of two checkouts in turn.

    python benchmarks/gateway_sessions.py [--beside CHECKOUT] [--rounds 3] [--sessions 300] [--quick]

The gateway, the bus and the scripted engine of `gateway.py`. Each round starts a gateway anew: memory that a process
has once used does not show what it holds. With `--beside`, the packages of another checkout have their rounds in
alternation with these; it must know all settings of this one, since both read the same recipe.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from gateway import Sizes, Workload, measure_open_sessions
from gateway_load import cpu_seconds
from gateway_system import REST_CORE, gateway_system, pin
from gateway_tokenizer import Texts, tokenizer_folder
from history import ROOT, append, busy_seconds, others_share, parse_arguments, table

HERE, BESIDE = "here", "beside"
FIGURES = ("mb_per_1000", "export_ms")


async def measure_side(sessions: int, model: Path, checkout: Path, number: int) -> dict[str, Any]:
    """Returns the figures of a new gateway, and the share of the machine that others used."""
    sizes = Sizes(calls=1, conversations=1, open_sessions=sessions, many=1, seconds=1.0, repeats=1)
    with tempfile.TemporaryDirectory() as folder:
        async with gateway_system(Path(folder), model, None, 0.0, checkout=checkout) as ours:
            pids = [os.getpid(), *ours.pids.values()]
            began, busy, own = time.perf_counter(), busy_seconds(), sum(map(cpu_seconds, pids))
            figures = await measure_open_sessions(Workload(Texts(model, None, seed=number), sizes), ours)
            own = sum(map(cpu_seconds, pids)) - own
            return {**figures, "others": others_share(busy_seconds() - busy, own, time.perf_counter() - began)}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the sides in turn; returns the figures of all rounds by side."""
    model, found = tokenizer_folder(None), defaultdict[str, list[dict[str, Any]]](list)
    checkouts = {HERE: ROOT, **({BESIDE: options.beside} if options.beside else {})}
    for number in range(options.rounds):
        for side in list(checkouts)[:: 1 if number % 2 else -1]:
            found[side].append(await measure_side(options.sessions, model, checkouts[side], number))
    return found


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=300)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT")
    options = parse_arguments(parser, {"rounds": 1, "sessions": 4})
    pin(REST_CORE, os.getpid())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(options))
    medians = {side: {name: median(one[name] for one in rounds) for name in FIGURES} for side, rounds in found.items()}
    rows: list[list[object]] = [[side, *figures.values()] for side, figures in medians.items()]
    print(table(["medians", "MB for 1,000 sessions", "export, CPU ms"], rows), end="\n\n")
    rounds_shown: list[list[object]] = [
        [f"{side}, round {number}", one["mb_per_1000"], one["export_ms"], one["others"]]
        for side, rounds in found.items()
        for number, one in enumerate(rounds)
    ]
    print(table(["", "MB for 1,000 sessions", "export, CPU ms", "others' CPU"], rounds_shown))
    if not options.no_history:
        append("gateway_sessions", {"sessions": options.sessions, "medians": medians, "rounds": found})


if __name__ == "__main__":
    main()
