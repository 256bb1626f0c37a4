"""Runs an engine that corrupts every seventh completion, one live run per kind of corruption, and prints the results.

    PYTHONPATH=benchmarks python benchmarks/archive/poison.py [KIND ...] [--folder runs/poison] [--steps 3] [--every 7]

A run passes if it ends with its exact number of steps, every corrupted completion is reported in its log, and no token
of one was exported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from history import append, parse_arguments
from poison_engine import KINDS
from seeds import markdown

from areal_actors.messages import KINDS as MESSAGES
from areal_actors.messages import CompletionRefused, EpisodeAbandoned, RunFinished, StepCompleted, TrajectoryExported
from areal_bus.message import Message
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
RUN = "poison"
TITLES = ["kind", "spoilt", "refused as", "attempts abandoned", "trained", "steps", "wall s", "verdict"]
SETTINGS = (
    f"run={RUN}",
    "profile=embedded",
    "warm_start.steps=1",
    "warm_start.tail_steps=0",
    "evaluation.tasks=0",
    "trainer.batch_size=4",
    "algorithm.group_size=4",
    "staleness_gate.max_concurrent=16",
    "staleness_gate.max_staleness=0",
    f"generation.engine={ROOT / 'benchmarks' / 'poison_engine.py'}:PoisonEngine",
    "generation.scripted.shortest=8",
    "gateway.completion_seconds=3",
)


async def log_of(folder: Path) -> list[Message]:
    """Read the events of an ended run from its store."""
    by_subject = {kind.subject: kind for kind in MESSAGES}
    server = await EmbeddedServer.start(folder / "nats")
    try:
        bus = await NatsBus.connect(server.url, RUN, name="reader", token=server.token, blobs=folder / "blobs")
        found = [envelope.open(by_subject[envelope.subject]) async for envelope in bus.log()]
        await bus.close()
    finally:
        await server.stop()
    return found


def run(kinds: str, folder: Path, steps: int, every: int) -> list[str]:
    """Run with these kinds; returns a line of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    noted = (folder / "spoilt.jsonl").resolve()
    environment = {**os.environ, "POISON_KINDS": kinds, "POISON_EVERY": str(every), "POISON_LOG": str(noted)}
    command = [
        sys.executable,
        "-m",
        "areal_actors",
        "run",
        "recipes/gsm8k_grpo.toml",
        f"folder={folder.resolve()}",
        f"steps={steps}",
    ]
    began = time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        done = subprocess.run(
            [*command, *SETTINGS], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    seconds = time.monotonic() - began
    events = asyncio.run(log_of(folder / RUN))
    spoilt = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
    poison = {bytes.fromhex(ids) for one in spoilt for ids in one["token_ids"]}
    refused = Counter(event.check for event in events if isinstance(event, CompletionRefused))
    exported = [event.trajectory for event in events if isinstance(event, TrajectoryExported)]
    trained = sum(turn.completion.token_ids in poison for trajectory in exported for turn in trajectory.interactions)
    abandoned = Counter(event.reason for event in events if isinstance(event, EpisodeAbandoned))
    taken = sum(isinstance(event, StepCompleted) for event in events)
    finished = [event for event in events if isinstance(event, RunFinished)][-1]
    named = ", ".join(f"{count} {check}" for check, count in refused.items())
    reasons = ", ".join(f"{count} {reason}" for reason, count in abandoned.items())
    fine = (
        done.returncode == 0
        and not finished.error
        and taken == steps
        and not trained
        and 0 < len(spoilt) == refused.total()
    )
    columns = (
        kinds,
        len(spoilt),
        named,
        reasons,
        trained,
        f"{taken} of {steps}",
        f"{seconds:.0f}",
        "passed" if fine else "FAILED",
    )
    return [str(column) for column in columns]


def print_line(line: list[str]) -> list[str]:
    """Print a line and return it."""
    print("  ".join(line), flush=True)
    return line


def main() -> int:
    """Run the given kinds, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help="kinds of corruption")
    parser.add_argument("--folder", type=Path, default=Path("runs/poison"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--every", type=int, default=7)
    options = parse_arguments(parser, {"kinds": list(KINDS)[:1], "steps": 1})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if options.quick else options.folder
        lines = [
            print_line(run(kind, folder / kind.replace(",", "+")[:60], options.steps, options.every))
            for kind in options.kinds
        ]
    print("\n" + "\n".join(markdown(TITLES, iter(lines))))
    if not options.no_history:
        append(
            "poison",
            {
                "steps": options.steps,
                "every": options.every,
                "kinds": [dict(zip(TITLES, line, strict=True)) for line in lines],
            },
        )
    return int(any(line[-1] != "passed" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
