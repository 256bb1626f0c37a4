"""A run at scale: 1,000 workers and 10,000 episodes in flight over a real nats-server and the real actors.

    python benchmarks/scale.py [--parts run lengths streams folds pull model] [--gateways 1 2 4]

Model and gradient are the only parts that are not real: engines sleep for as long as an answer takes, optimizer steps
for as long as they take. The trainer takes `--rate` episodes per second, and an answer as many seconds as have
`--in-flight` episodes in flight (Little's law); a batch and a half more may wait for it. Starved is the share of time
in which the trainer has no batch: because groups are missing, or because control has not formed it yet. It counts
seconds, so that other processes on the machine add to it; `others' CPU` is their share.

`lengths` repeats a small run with short and long answers, for the cost of a token. `streams` writes messages of the
run's sizes to one stream and to four. `folds` is the CPU time of an event in the folds, by the number of groups in
flight. `pull` is the cost of sending weights over HTTP. `model` looks for the walls of a larger run: it computes from
all of these what each process of a run on 256 training and 744 generating GPUs takes.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import scale_folds
import scale_pull
import scale_streams
import uvloop
from history import append, parse_arguments, table
from scale_model import HEADER, Cluster, costs, rows
from scale_process import Sizes
from scale_run import figures, measure

from areal_actors.recipe.run_actors import COUNTED

PARTS = ("run", "lengths", "streams", "folds", "pull", "model")
LONGEST_SECONDS = 900.0
SMALL_RUN = {"in_flight": 320, "rate": 32.0, "steps": 24}
"""The runs of `lengths`."""
STREAMS = (1, 4)
TIMES_ABOVE = 100
"""Messages written to the streams, per episode in flight of the run."""
QUICK = {
    "in_flight": 80,
    "rate": 40.0,
    "steps": 9,
    "workers": 12,
    "rollout_workers": 2,
    "lengths": [16, 116],
    "messages": 4000,
    "groups": [48, 500],
    "inference": [1, 50],
    "events": 200,
    "repeats": 1,
    "megabytes": 8,
}


def gateways_served(count: int) -> bool:
    """True if a run may have this number of gateways."""
    return count == 1 or "session_manager" in COUNTED


def sizes_of(arguments: argparse.Namespace, gateways: int = 1) -> Sizes:
    """Sizes of the large run."""
    rollouts = arguments.rollout_workers
    return Sizes(
        in_flight=arguments.in_flight,
        rate=arguments.rate,
        steps=arguments.steps,
        tokens=arguments.lengths[0],
        rollout_workers=rollouts,
        inference_workers=arguments.workers - rollouts,
        gateways=gateways,
    )


def run(sizes: Sizes) -> dict[str, Any]:
    """Figures of a run."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return figures(runner.run(measure(sizes, LONGEST_SECONDS)))


def lengths(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Figures of small runs with short and with long answers."""
    small = {key: min(value, getattr(arguments, key)) for key, value in SMALL_RUN.items()}
    workers = {"rollout_workers": 2, "inference_workers": 10}
    return [run(Sizes(tokens=tokens, **small, **workers)) for tokens in arguments.lengths]


def streams(arguments: argparse.Namespace, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Figures of one stream and of several, without readers and with those of a run.

    The counts alternate, and the best of each is kept.
    """
    best: dict[tuple[int, int], dict[str, Any]] = {}
    for _ in range(arguments.repeats):
        for readers in (0, scale_streams.CONSUMERS):
            for count in STREAMS:
                case = asyncio.run(scale_streams.measure(count, readers, sizes, arguments.messages))
                key = count, readers
                if key not in best or case["events_per_second"] > best[key]["events_per_second"]:
                    best[key] = case
    return list(best.values())


def print_runs(cases: Sequence[Mapping[str, Any]]) -> None:
    """Print figures of runs, one column for each."""
    shown = {
        "gateways": "gateways",
        "tokens": "tokens an answer",
        "in_flight_mean": "episodes in flight, mean",
        "in_flight_most": "episodes in flight, most",
        "queued_most": "episodes queued, most",
        "episodes_per_second": "episodes/s",
        "events_per_second": "events/s",
        "log_bytes_per_episode": "bytes of log an episode",
        "starved": "trainer starved",
        "starved_for_groups": "- for groups",
        "starved_for_control": "- for control",
        "around_steps": "reads and publishes",
        "others": "others' CPU",
    }
    shares = {"starved", "starved_for_groups", "starved_for_control", "around_steps", "others"}
    lines = [
        [label, *(f"{case[key]:.2%}" if key in shares else case[key] for case in cases)] for key, label in shown.items()
    ]
    names = list(dict.fromkeys(name for case in cases for name in case["cpu_share"]))
    for key, label in (
        ("cpu_share", "cores"),
        ("cpu_ms_per_episode", "CPU ms an episode"),
        ("kib_per_episode", "KiB in flight"),
        ("mib_at_most", "MiB"),
    ):
        lines += [[f"{name}: {label}", *(case[key].get(name, "") for case in cases)] for name in names]
    pairs = list(dict.fromkeys(pair for case in cases for pair in case["delays_ms"]))
    for pair in pairs:
        spread = [case["delays_ms"].get(pair) for case in cases]
        lines.append([f"{pair}, ms", *(f"{one['p50']:g}, p99 {one['p99']:g}" if one else "" for one in spread)])
    print(table(["", *("" for _ in cases)], lines), "\n")


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--gateways", type=int, nargs="+", default=[1], help="a run for each number of gateways")
    parser.add_argument("--in-flight", type=int, default=10_000, help="episodes in flight")
    parser.add_argument("--rate", type=float, default=100.0, help="episodes that the trainer takes per second")
    parser.add_argument("--steps", type=int, default=20, help="steps of a run; those after the first five are measured")
    parser.add_argument("--workers", type=int, default=1000, help="rollout workers and inference workers")
    parser.add_argument("--rollout-workers", type=int, default=16, help="those of them that run agents")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs=2,
        default=[16, 516],
        help="tokens of an answer: in the runs, and in the small one with long ones",
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=40_000,
        help="messages written to the streams, few enough for the buffers of the server",
    )
    parser.add_argument("--repeats", type=int, default=2, help="alternations of the numbers of streams")
    parser.add_argument(
        "--groups", type=int, nargs="+", default=[48, 1000, 2500, 10_000], help="groups in flight in the folds"
    )
    parser.add_argument(
        "--inference", type=int, nargs="+", default=[1, 100, 744], help="inference workers in the folds"
    )
    parser.add_argument("--events", type=int, default=2000, help="events of each fold")
    parser.add_argument("--megabytes", type=int, default=512, help="size of the weights that are pulled")
    arguments = parse_arguments(parser, QUICK)
    if "model" in arguments.parts and (missing := {"run", "lengths", "streams", "pull"} - set(arguments.parts)):
        parser.error(f"--parts: the model needs {', '.join(sorted(missing))} too")
    found: dict[str, Any] = {}
    if "run" in arguments.parts:
        served = [count for count in arguments.gateways if gateways_served(count)]
        if left := sorted(set(arguments.gateways) - set(served)):
            print(f"left out, since a run has one gateway here: {', '.join(map(str, left))} gateways", file=sys.stderr)
        found["runs"] = [run(sizes_of(arguments, count)) for count in served]
        print_runs(found["runs"])
    if "lengths" in arguments.parts:
        found["lengths"] = lengths(arguments)
        print_runs(found["lengths"])
    if "streams" in arguments.parts:
        found["streams"] = streams(arguments, found["runs"][0]["event_bytes"] if "runs" in found else EVENT_BYTES)
        print(table(list(found["streams"][0]), [list(case.values()) for case in found["streams"]]), "\n")
    if "folds" in arguments.parts:
        found["folds"] = scale_folds.measure(arguments.groups, arguments.inference, arguments.events)
        print(table(["fold", "at", "CPU us an event"], [list(case.values()) for case in found["folds"]]), "\n")
    if "pull" in arguments.parts:
        found["pull"] = scale_pull.measure(arguments.megabytes)
        print(table(list(found["pull"]), [list(found["pull"].values())]), "\n")
    if "model" in arguments.parts:
        print_model(found)
    if not arguments.no_history:
        append("scale", found)


EVENT_BYTES = [430, 420, 900]
"""Bytes of the events of an episode, where no run was measured."""


def print_model(found: dict[str, Any]) -> None:
    """Compute the walls of the cluster, print them, and add them to the figures."""
    rest = {**found["pull"], "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
    measured = costs(found["runs"][0], *found["lengths"], found["streams"], rest)
    found["cluster"], found["costs"] = msgspec.to_builtins(Cluster()), msgspec.to_builtins(measured)
    found["walls"] = rows(Cluster(), measured)
    cluster = Cluster()
    print(
        f"{cluster.training_gpus} training and {cluster.generating_gpus} generating GPUs:"
        f" {cluster.episodes_per_second:.0f} episodes/s of {cluster.episode_tokens} tokens, {cluster.in_flight} in"
        f" flight, {cluster.rollout_workers} rollout workers, a step in {cluster.step_seconds:.1f} s,"
        f" {cluster.episodes_per_second * measured.events:.0f} events/s,"
        f" {cluster.episodes_per_second * measured.bytes_of(cluster.episode_tokens) / 1e6:.1f} MB/s of log"
    )
    keys = ["wall", "used", "limit", "unit", "gpus", "episodes_per_second", "moved_by"]
    print(table(HEADER, [[wall[key] for key in keys] for wall in found["walls"]]))


if __name__ == "__main__":
    main()
