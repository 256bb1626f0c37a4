"""Episodes whose agents block the event loop, on a loaded machine: attempts abandoned, run twice, lost.

    python benchmarks/blocked_loop.py [--at-once 64] [--steps 8] [--busy 3] [--quick]

Two agents run in a real system (NATS server, gateway, actors, reward processes), except for an engine that answers
immediately and a trainer without a gradient, beside busy loops that use the CPU: the verbatim example of
docs/write-an-agent.md, which creates a client in every episode; and `blocking_agent.py`, which sleeps for ten seconds
in one episode of 32.

Counted: abandoned attempts, attempts with two sessions (run twice), and episodes without a trajectory (lost).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from history import ROOT, append, table
from orchestration import EPISODES_A_STEP, recipe, system

from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import EpisodeAbandoned, OpenSession, RunStarted, StepCompleted, TrajectoryExported
from areal_actors.recipe.recipe import Recipe
from areal_bus.base import Envelope, Stamp

DOCUMENTED_PAGE = ROOT / "docs" / "write-an-agent.md"
BLOCKING_AGENT = f"{Path(__file__).with_name('blocking_agent.py')}:BlockingAgent"
BLOCKED = "loop.blocked"
LONGEST_SECONDS = 1500.0


class RunCounts:
    """Counts of a run's messages on the bus."""

    def __init__(self) -> None:
        self.opened: dict[tuple[str, int], set[str]] = defaultdict(set)
        """Deliveries of each attempt that opened a session: one repeats its request while no gateway serves."""
        self.abandoned: Counter[str] = Counter()
        self.details: Counter[str] = Counter()
        self.lost = 0
        self.exported = 0
        self.blocked: list[dict[str, Any]] = []
        self.steps = 0

    def add(self, envelope: Envelope) -> None:
        """Count a message of any type."""
        if envelope.subject == OpenSession.subject:
            work = envelope.open(OpenSession).work
            self.opened[work.episode, work.attempt].add(envelope.cause)
        elif envelope.subject == EpisodeAbandoned.subject:
            gone = envelope.open(EpisodeAbandoned)
            self.abandoned[gone.reason] += 1
            self.details[f"{gone.reason}: {gone.detail[:300]}"] += 1
            self.lost += gone.work.attempts_left == 0
        elif envelope.subject == TrajectoryExported.subject:
            self.exported += 1
        elif envelope.subject == BLOCKED:
            self.blocked.append(msgspec.msgpack.decode(envelope.body))
        elif envelope.subject == StepCompleted.subject:
            self.steps = envelope.open(StepCompleted).step

    def figures(self, case: str, seconds: float) -> dict[str, Any]:
        """Figures of one table row."""
        lines: Counter[str] = Counter()
        for report in self.blocked:
            lines[report["line"]] += report["seconds"]
        return {
            "case": case,
            "attempts": len(self.opened),
            "abandoned": sum(self.abandoned.values()),
            "run_twice": sum(len(deliveries) > 1 for deliveries in self.opened.values()),
            "lost": self.lost,
            "exported": self.exported,
            "seconds": round(seconds, 1),
            "blocked": {line: round(total, 1) for line, total in lines.most_common(3)},
            "reasons": dict(self.details.most_common(3)),
        }


def documented_agent(folder: Path) -> str:
    """Write the example of the documentation to a file."""
    found = re.search(r"```python\n(.*?)```", DOCUMENTED_PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, f"{DOCUMENTED_PAGE} has no Python block to use as the agent"
    agent = folder / "agent.py"
    agent.write_text(found[1])
    return f"{agent}:Agent"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run `count` processes that only use CPU time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def measure(case: str, agent: str, at_once: int, steps: int, folder: Path) -> dict[str, Any]:
    """Run until the last step."""
    plan = recipe(at_once, steps, folder, {})
    plan = msgspec.structs.replace(plan, steps=steps, task=msgspec.structs.replace(plan.task, agent=agent))
    counts = RunCounts()
    async with system(plan, RunFolder(folder / plan.run)) as (bus, _):
        reading = [
            asyncio.create_task(_read(source, counts))
            for source in (bus.watch(OpenSession.subject), bus.log(follow=True))
        ]
        try:
            began = time.monotonic()
            await bus.publish(_started(plan, folder), Stamp(id="started", sender="benchmark", time=time.time()))
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_SECONDS):
                    while counts.steps < steps:  # noqa: ASYNC110 - updated from the bus
                        await asyncio.sleep(0.1)
            return counts.figures(case, time.monotonic() - began)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)


def _started(plan: Recipe, folder: Path) -> RunStarted:
    return RunStarted(recipe=msgspec.to_builtins(plan), profile="benchmark", reason="measured", folder=str(folder))


async def _read(source: AsyncIterator[Envelope], counts: RunCounts) -> None:
    async for envelope in source:
        counts.add(envelope)


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--at-once", type=int, default=64, metavar="EPISODES", help="in flight at once; a multiple of 4"
    )
    parser.add_argument("--steps", type=int, default=8, help=f"of {EPISODES_A_STEP} episodes")
    parser.add_argument("--busy", type=int, default=3, help="busy loops for each core")
    parser.add_argument("--case", choices=["example", "blocking"], help="only this one")
    parser.add_argument("--quick", action="store_true", help="two steps, one busy loop per core, no history")
    parser.add_argument("--no-history", action="store_true", help="print only")
    arguments = parser.parse_args()
    steps, busy = (2, 1) if arguments.quick else (arguments.steps, arguments.busy)
    cases = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, busy_loops(busy * (os.cpu_count() or 1)):
        for case in [arguments.case] if arguments.case else ["example", "blocking"]:
            with tempfile.TemporaryDirectory() as temporary:
                agent = documented_agent(Path(temporary)) if case == "example" else BLOCKING_AGENT
                cases.append(runner.run(measure(case, agent, arguments.at_once, steps, Path(temporary))))
    keys = ["case", "attempts", "abandoned", "run_twice", "lost", "exported", "seconds"]
    print(table(keys, [[case[key] for key in keys] for case in cases]))
    for case in cases:
        for line, seconds in case["blocked"].items():
            print(f"{case['case']}: blocked for {seconds:g} s at {line}")
        for reason, count in case["reasons"].items():
            print(f"{case['case']}: {count} x {reason}")
    if not (arguments.no_history or arguments.quick):
        append("blocked_loop", {"at_once": arguments.at_once, "busy_loops_a_core": busy, "cases": cases})


if __name__ == "__main__":
    main()
