"""Runs that one cause limits on purpose, and the verdict of `areal-actors why` on each, with the effect of its advice.

    python benchmarks/limits.py [NAME ...] [--busy N] [--no-advice] [--quick] [--no-history]

Each run of the main recipe takes a few steps. A verdict is right if it names the cause. Then the run is repeated with
the first advice applied: it helps if steps come faster. `--busy` starts N programs that compute all the time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from history import ROOT, append, parse_arguments, table
from limited_agents import spin

AGENT = "task.agent=benchmarks/limited_agents.py:LimitedAgent"
BASE = (
    "profile=embedded",
    "evaluation.tasks=0",
    "evaluation.every_steps=0",
    "checkpoint.every_steps=0",
    "task.held_out=64",
    "autoscale.window_seconds=5",
)
STEPS = 12


class Case(NamedTuple):
    """A run, and what is to be found out about it."""

    name: str
    party: tuple[str, ...]
    """Beginnings of a right verdict."""
    words: tuple[str, ...]
    advised: str
    """Text that the advice is to have."""
    cure: tuple[str, ...]
    """Words that the advice changes, after those of the run."""


def options(**values: object) -> str:
    """A word with the options of the agent."""
    inner = ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
    return f"task.agent_options={{{inner}}}"


TRAINER = ("Training limits",)
ENGINE = ("The inference engine limits",)
AGENTS = ("The agent limits",)
REWARDS = ("Rewards limit",)
LIMITED = "benchmarks/limited_agents.py"
SLOW_STEP = ("generation.max_model_len=160", "trainer.microbatch_tokens=160", 'trainer.prefix_sharing="off"')
CASES = (
    Case("trainer, tiny micro-batches", TRAINER, SLOW_STEP, "fewer tokens a step", ("trainer.batch_size=8",)),
    Case(
        "trainer, several updates",
        TRAINER,
        (*SLOW_STEP, "algorithm.minibatches=4"),
        "fewer tokens a step",
        ("trainer.batch_size=8",),
    ),
    Case(
        "trainer, four versions behind",
        TRAINER,
        (*SLOW_STEP, "staleness_gate.max_staleness=4"),
        "fewer tokens a step",
        ("trainer.batch_size=8",),
    ),
    Case(
        "engine, 4 slots",
        ENGINE,
        ("generation.max_num_seqs=4",),
        "generation.max_num_seqs",
        ("generation.max_num_seqs=64",),
    ),
    Case(
        "engine, 8 slots",
        ENGINE,
        ("generation.max_num_seqs=8",),
        "generation.max_num_seqs",
        ("generation.max_num_seqs=64",),
    ),
    Case(
        "engine, 8 calls at once",
        ENGINE,
        ("actors.inference_worker.concurrency=8",),
        "actors.inference_worker.concurrency",
        ("actors.inference_worker.concurrency=64",),
    ),
    Case(
        "agent, computes 30 ms", AGENTS, (AGENT, options(compute=0.03)), "limited_agents.py:", (options(compute=0.0),)
    ),
    Case(
        "agent, computes 60 ms", AGENTS, (AGENT, options(compute=0.06)), "limited_agents.py:", (options(compute=0.0),)
    ),
    Case(
        "agent, a client for each episode",
        AGENTS,
        (AGENT, options(new_client=True)),
        "limited_agents.py:",
        (options(new_client=False),),
    ),
    Case(
        "agent, waits 2 s, 128 at once",
        AGENTS,
        (AGENT, options(wait=2.0), "staleness_gate.max_concurrent=16"),
        "staleness_gate.max_concurrent",
        ("staleness_gate.max_concurrent=48",),
    ),
    Case(
        "agent, waits 4 s, 192 at once",
        AGENTS,
        (AGENT, options(wait=4.0), "staleness_gate.max_concurrent=24"),
        "staleness_gate.max_concurrent",
        ("staleness_gate.max_concurrent=48",),
    ),
    Case(
        "agent, waits 1 s, 32 slots",
        AGENTS,
        (AGENT, options(wait=1.0), "actors.rollout_worker.concurrency=32"),
        "actors.rollout_worker.concurrency",
        ("actors.rollout_worker.concurrency=384",),
    ),
    Case(
        "reward, waits 50 ms",
        REWARDS,
        (f"task.reward={LIMITED}:reward_by_waiting",),
        "actors.reward_worker.count",
        ("actors.reward_worker.count=2",),
    ),
    Case(
        "reward, computes 40 ms",
        REWARDS,
        (f"task.reward={LIMITED}:reward_by_computing",),
        "faster reward",
        ("task.reward=gsm8k",),
    ),
    Case(
        "reward, waits 50 ms, two workers",
        REWARDS,
        (f"task.reward={LIMITED}:reward_by_waiting", "actors.reward_worker.count=2"),
        "actors.reward_worker.count",
        ("actors.reward_worker.count=4",),
    ),
    Case(
        "evaluations after each step",
        ("Evaluations limit",),
        ("evaluation.tasks=64", "evaluation.every_steps=1", "evaluation.periodic_tasks=64"),
        "evaluation.every_steps",
        ("evaluation.every_steps=6",),
    ),
    Case(
        "synchronous, slow step",
        ("Synchronous training limits",),
        ("staleness_gate.max_staleness=0", *SLOW_STEP),
        "staleness_gate.max_staleness = 1",
        ("staleness_gate.max_staleness=1",),
    ),
    Case(
        "synchronous, agent waits",
        ("Synchronous training limits", "The agent limits"),
        ("staleness_gate.max_staleness=0", *SLOW_STEP, AGENT, options(wait=1.0)),
        "staleness_gate.max_staleness",
        ("staleness_gate.max_staleness=1",),
    ),
)


def main() -> int:
    """Run the cases, print a table and append a line to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of the names of cases")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="programs that compute beside the runs")
    parser.add_argument("--no-advice", action="store_true", help="do not repeat the runs with the advice")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parse_arguments(parser, {"names": ["agent, computes 60"], "steps": 3, "no_advice": True})
    chosen = [case for case in CASES if not arguments.names or any(name in case.name for name in arguments.names)]
    busy = [multiprocessing.Process(target=spin, args=(1e9,), daemon=True) for _ in range(arguments.busy)]
    for process in busy:
        process.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = [_show(_judge(case, Path(folder), arguments)) for case in chosen]
    finally:
        for process in busy:
            process.kill()
    right = sum(outcome["right"] for outcome in outcomes)
    advised = sum(outcome["advised"] for outcome in outcomes)
    rows = [[str(outcome[name]) for name in ("name", "right", "advised", "gain", "verdict")] for outcome in outcomes]
    print(table(("run", "right", "advised", "steps a second", "verdict"), rows))
    summary: dict[str, Any] = {"runs": len(outcomes), "right": right, "advised": advised, "busy": arguments.busy}
    if gains := [outcome["gain"] for outcome in outcomes if outcome["gain"]]:
        summary |= {"helped": sum(gain > 1.05 for gain in gains), "tried": len(gains)}
        summary["median_gain"] = round(statistics.median(gains), 2)
    print(summary)
    if not arguments.no_history and len(chosen) == len(CASES):
        print(append("limits", summary))
    return 0


def _judge(case: Case, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    words = [*BASE, *case.words, f"steps={arguments.steps}"]
    name = re.sub(r"[^a-z0-9]+", "-", case.name)
    why, pace = _run(words, folder, f"{name}-planted")
    right = why["verdict"].startswith(case.party)
    advice = " ".join(why["advice"])
    gain = 0.0
    if right and not arguments.no_advice:
        gain = round(_run([*words, *case.cure], folder, f"{name}-advised")[1] / pace, 2)
    fields = {"verdict": why["verdict"], "advice": why["advice"], "further": why["further"]}
    return {"name": case.name, "right": right, "advised": case.advised in advice, "gain": gain, **fields}


def _run(words: list[str], folder: Path, name: str) -> tuple[dict[str, Any], float]:
    """The verdict on a run, and its steps a second."""
    command = [sys.executable, "-m", "areal_actors"]
    start = [*command, "run", "recipes/gsm8k_grpo.toml", f"run={name}", f"folder={folder}", *words]
    done = subprocess.run(start, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(start)}\n{done.stderr[-2000:]}")
    why = subprocess.run(
        [*command, "why", name, "--folder", str(folder), "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    steps = [row["time"] for row in rows if row["kind"] == "step.completed"]
    return json.loads(why.stdout), (len(steps) - 1) / (steps[-1] - steps[0])


def _show(outcome: dict[str, Any]) -> dict[str, Any]:
    mark = "right" if outcome["right"] else "WRONG"
    print(f"{outcome['name']}: {mark}: {outcome['verdict']} | {outcome['advice']} | {outcome['further']}", flush=True)
    return outcome


if __name__ == "__main__":
    raise SystemExit(main())
