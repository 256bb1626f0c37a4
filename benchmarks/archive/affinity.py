"""Tokens prefilled and seconds of conversations on two inference workers, with and without session affinity.

    PYTHONPATH=benchmarks python benchmarks/archive/affinity.py [--together 4 16 48] [--turns 10]
        [--tool-seconds 0.05] [--repeats 3]

The gateway's choice of workers (`gateway/worker_pool.py`) over two embedded engines, each with its own prefix cache and
thread, and the conversations of ten turns of `prefix_cache.py`, with a tool between turns that takes an exponentially
distributed time. Without affinity every call goes to the least busy worker, which is what the choice does for calls
without a session. Runs of the two alternate on the same engines, and the fastest of each counts: compare the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from engine import make_folder
from history import append, parse_arguments
from prefix_cache import CONTEXT, Episodes, run_episode, sampled

from areal_actors.core.values import SamplingParams
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.gateway.worker_pool import WorkerPool
from areal_actors.generation.settings import GenerationSettings

WORKERS = 2
WAIT_SECONDS = 60.0
QUICK = {"together": [2, 4], "turns": 3, "repeats": 1}


async def run_episodes(
    engines: dict[str, TransformersEngine], first: int, together: int, options: argparse.Namespace, *, affinity: bool
) -> Episodes:
    """Play `together` conversations at once; `first` is the seed of the first one's tokens."""
    pool = WorkerPool()
    for worker, engine in engines.items():
        pool.record_load(worker, 0)
        engine.take_counters()

    async def play(number: int) -> None:
        session, tool = f"session-{number}" if affinity else "", np.random.default_rng([number, together])

        async def sample(prompt: list[int], sampling: SamplingParams) -> list[int]:
            worker = await pool.choose(WAIT_SECONDS, session)
            with pool.count_call(worker, session):
                tokens = await sampled(engines[worker], prompt, sampling)
            await asyncio.sleep(tool.exponential(options.tool_seconds))
            return tokens

        await run_episode(sample, (first + number, number), options.turns)

    began = time.perf_counter()
    await asyncio.gather(*(play(number) for number in range(together)))
    seconds, counters = time.perf_counter() - began, [engine.take_counters() for engine in engines.values()]
    return Episodes(
        seconds, sum(each.prefilled_tokens for each in counters), sum(each.cached_tokens for each in counters)
    )


async def measure(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, object]:
    """All levels of concurrency, reported line by line and returned as one table."""
    rows = []
    report(f"{'episodes':>8}{'prefilled':>12}{'without':>12}{'seconds':>10}{'without':>10}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary), positions=CONTEXT)
        settings = GenerationSettings(device="cpu", max_num_seqs=max(options.together), max_model_len=CONTEXT)
        engines = {f"inference_worker-{number}": TransformersEngine(folder, settings) for number in range(WORKERS)}
        first = 0
        for together in options.together:
            runs: dict[bool, list[Episodes]] = {True: [], False: []}
            for _ in range(options.repeats):
                for affinity, taken in runs.items():
                    taken.append(await run_episodes(engines, first, together, options, affinity=affinity))
                    # The next run has other tokens, which no slot holds.
                    first += together
            with_affinity, without = (min(taken, key=lambda run: run.seconds) for taken in runs.values())
            ratio = without.seconds / with_affinity.seconds
            rows.append(
                {"together": together, "with": asdict(with_affinity), "without": asdict(without), "ratio": ratio}
            )
            report(
                f"{together:>8}{with_affinity.prefilled_tokens:>12,}{without.prefilled_tokens:>12,}"
                f"{with_affinity.seconds:>10.2f}{without.seconds:>10.2f}{ratio:>8.2f}"
            )
        for engine in engines.values():
            await engine.close()
    return {"workers": WORKERS, "turns": options.turns, "tool_seconds": options.tool_seconds, "cases": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--together", type=int, nargs="+", default=[4, 16, 48], help="episodes at once")
    parser.add_argument("--turns", type=int, default=10, help="turns of an episode, at most 13")
    parser.add_argument("--tool-seconds", type=float, default=0.05, help="mean time of the tool between two turns")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parse_arguments(parser, QUICK)
    figures = asyncio.run(measure(arguments, print))
    if not arguments.no_history:
        append("affinity", figures)


if __name__ == "__main__":
    main()
