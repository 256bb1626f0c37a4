"""Replay of recorded asynchronous runs: does every actor and every weight version come out as recorded, and how fast?

    python benchmarks/replay.py [--kinds single-turn multi-turn tools online lora ppo] [--runs 4] [--steps 12] [SETTING
    ...]

Runs of each kind, with seeds from 0 on, are recorded one after the other with the recipes' own limits (asynchronous).
Then commands replay each: `areal-actors audit RUN --replay` the control plane, `areal-actors audit RUN --recompute`
every step of the trainer, whose weights must have the recorded checksums, and
`areal-actors audit RUN staleness_gate.max_staleness=0 --actor staleness_gate --replay` a changed rule up to its first
difference. Speeds are multiples of the recorded run's duration, from its first event to its last. Seconds are those of
whole commands with the start of the interpreter, but for `reading` and `difference`, which are the replay's own. Ends
with status 1 unless all are equal.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from history import LONGEST_SECONDS, ROOT, SMALL, append, areal, parse_arguments, table
from seeds import RECIPE, spread

from areal_actors.core.free_ports import find_free_ports
from areal_actors.reader import open_run
from areal_actors.replay.command import DIFFERENT, EQUAL
from areal_actors.tasks.datasets import open_dataset

KINDS: dict[str, tuple[str, ...]] = {
    "single-turn": (str(RECIPE),),
    "multi-turn": ("recipes/multi_turn.toml",),
    "tools": ("recipes/tools.toml",),
    "online": ("recipes/online.toml",),
    "lora": (str(RECIPE), "trainer.lora.rank=16"),
    "ppo": (str(RECIPE), "recipes/ppo.toml"),
}
"""Words of `areal-actors run`."""
ONLINE_TASKS = 1000
GATEWAY_SECONDS = 300.0
"""Time limit of an online run until its gateway answers."""
QUICK = {"kinds": ["single-turn", "online"], "runs": 1, "steps": 2, "settings": list(SMALL)}


class Outcome(msgspec.Struct, frozen=True):
    """Figures of one recorded run."""

    kind: str
    seed: int
    events: int
    steps: int
    stale: float
    """Mean age of the trained tokens, in weight versions."""
    recorded: float
    """Seconds from the run's first event to its last."""
    reading: float
    """Seconds in which the control plane was replayed."""
    control: float
    """Seconds of the command."""
    trainer: float
    """Seconds of the command."""
    difference: float
    """Seconds in which the first difference of a changed rule was found."""
    difference_command: float
    """Seconds of the command."""
    equal: bool
    """All actors and all weight versions."""
    versions: int
    """Weight versions that were computed again, each with the recorded checksum."""


def command(*words: str) -> tuple[int, str, float]:
    """Returns the exit status, the output and the seconds of a command; a difference is no failure."""
    began = time.perf_counter()
    ended = areal(*words, allowed=(EQUAL, DIFFERENT))
    return ended.returncode, ended.stdout, time.perf_counter() - began


def record(kind: str, seed: int, folder: Path, options: argparse.Namespace) -> str:
    """Record a run; returns its path."""
    name = f"{kind}-{seed}"
    words = [
        *KINDS[kind],
        "profile=embedded",
        f"run={name}",
        f"folder={folder}",
        f"steps={options.steps}",
        f"seed={seed}",
    ]
    words += options.settings
    if kind == "online":
        record_online(words, folder / name, seed)
    else:
        areal("run", *words)
    return str(folder / name)


def record_online(words: Sequence[str], run: Path, seed: int) -> None:
    """Record an online run, whose episodes are played by agents/online_script.py on generated problems."""
    problems = open_dataset("arithmetic", seed=seed, held_out=1).train
    file, port = run.parent / f"{run.name}.jsonl", find_free_ports()
    file.write_text(
        "".join(json.dumps(problems.task(number).data) + "\n" for number in range(ONLINE_TASKS)), encoding="utf-8"
    )
    start = [sys.executable, "-m", "areal_actors", "run", *words, "evaluation.tasks=0", f"gateway.port={port}"]
    agent: subprocess.Popen[bytes] | None = None
    process = subprocess.Popen(
        start, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_gateway(process, port)
        address = [f"http://127.0.0.1:{port}", (run / "admin_key").read_text(encoding="utf-8"), str(file)]
        script = [sys.executable, "agents/online_script.py", *address]
        agent = subprocess.Popen(
            script, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if status := process.wait(LONGEST_SECONDS):
            raise SystemExit(f"the online run ended with status {status}; {run} has its logs")
    finally:
        for each in (agent, process):
            if each is not None:
                each.terminate()
                each.wait(LONGEST_SECONDS)


def wait_for_gateway(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the gateway of a run answers.

    Raises:
        SystemExit: the run ended, or the gateway did not answer within `GATEWAY_SECONDS`.
    """
    end = time.monotonic() + GATEWAY_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.2)
    raise SystemExit(
        f"the gateway of the online run did not answer within {GATEWAY_SECONDS:.0f} s; exit status {process.poll()}"
    )


def replayed(kind: str, seed: int, run: str) -> Outcome:
    """Replay a recorded run."""
    status, text, control = command("audit", "--replay", run, "--json")
    found = json.loads(text)
    trainer_status, text, trainer = command("audit", "--replay", run, "--recompute")
    compared = re.search(r"(\d+) of (\d+) versions proved", text)
    versions, published = map(int, compared.groups()) if compared else (0, 1)
    _, changed, difference = command(
        "audit", "--replay", run, "staleness_gate.max_staleness=0", "--actor", "staleness_gate", "--json"
    )
    stale = [value for value in open_run(run).steps["token_staleness_mean"] if value is not None]
    return Outcome(
        kind=kind,
        seed=seed,
        events=found["events"],
        steps=len(stale),
        stale=sum(stale) / max(len(stale), 1),
        recorded=found["recorded_seconds"],
        reading=found["seconds"],
        control=control,
        trainer=trainer,
        difference=json.loads(changed)["seconds"],
        difference_command=difference,
        equal=status == trainer_status == 0 and found["count"] == 0 and versions == published,
        versions=versions,
    )


def rows(outcomes: Sequence[Outcome]) -> Iterator[list[object]]:
    """Yield a line for each kind: sums, and lowest / median / highest of its runs."""
    for kind in dict.fromkeys(one.kind for one in outcomes):
        ran = [one for one in outcomes if one.kind == kind]
        yield [
            kind,
            f"{sum(one.equal for one in ran)} of {len(ran)}",
            sum(one.events for one in ran),
            sum(one.versions for one in ran),
            spread([one.stale for one in ran]),
            spread([one.recorded for one in ran]),
            spread([one.recorded / one.control for one in ran]),
            spread([one.recorded / one.reading for one in ran]),
            spread([one.recorded / one.trainer for one in ran]),
            spread([one.difference for one in ran]),
            spread([one.difference_command for one in ran]),
        ]


HEADER = (
    "kind",
    "equal",
    "events",
    "versions",
    "staleness",
    "recorded s",
    "control, ×",
    "reading, ×",
    "trainer, ×",
    "difference s",
    "command s",
)


def main() -> None:
    """Record, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="SETTING", help="for every run, e.g. `trainer.batch_size=4`"
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--runs", type=int, default=4, help="runs of each kind, with seeds from 0 on")
    parser.add_argument("--steps", type=int, default=12)
    options = parse_arguments(parser, QUICK)
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in options.kinds:
            for seed in range(options.runs):
                outcomes.append(replayed(kind, seed, record(kind, seed, Path(temporary), options)))
                print(msgspec.json.encode(outcomes[-1]).decode(), flush=True)
    print(table(HEADER, list(rows(outcomes))))
    if not options.no_history:
        print(
            append(
                "replay", {"steps": options.steps, "settings": options.settings, "runs": msgspec.to_builtins(outcomes)}
            )
        )
    if not all(one.equal for one in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
