"""Tokens prefilled and seconds of conversations of ten turns in the embedded engine, with and without its prefix cache.

    PYTHONPATH=benchmarks python benchmarks/archive/prefix_cache.py [--together 1 8 32] [--turns 10] [--repeats 3]

Each episode sends its whole history every turn, as the gateway does: a first prompt of 300 tokens, then 24 to 40
sampled tokens and 100 tokens of a tool's result a turn. Episodes run at once, each at its own pace. Without the cache,
the first token of every prompt is another one, so that nothing of it can be reused; prompts and completions have the
same lengths. Runs of the two alternate on one engine, and the fastest of each counts: compare the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from engine import VOCABULARY, make_folder
from history import append, parse_arguments

from areal_actors.core.values import SamplingParams
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings

CONTEXT = 2048
PROMPT = 300
RESULT = 100
"""Tokens of a tool's result."""
SAMPLED = (24, 40)
"""Fewest and most sampled tokens of a turn."""
QUICK = {"together": [1, 4], "turns": 3, "repeats": 1}
Sample = Callable[[list[int], SamplingParams], Awaitable[list[int]]]
"""Samples a completion of a prompt."""


@dataclass(frozen=True)
class Episodes:
    """Figures of one run of concurrent episodes."""

    seconds: float
    prefilled_tokens: int
    cached_tokens: int


async def sampled(engine: TransformersEngine, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """Return the tokens of a completion."""
    chunks = [chunk async for chunk in engine.generate("benchmark", prompt, sampling)]
    return [token_id for chunk in chunks for token_id in chunk.columns.ids_array().tolist()]


async def run_episode(sample: Sample, seeds: tuple[int, int], turns: int, *, reuse: bool = True) -> None:
    """Play one conversation; the seeds determine its tokens and its lengths."""
    numbers, lengths = map(np.random.default_rng, seeds)
    history: list[int] = numbers.integers(0, VOCABULARY, PROMPT).tolist()
    for turn in range(turns):
        if not reuse:
            history[0] = (history[0] + 1) % VOCABULARY
        sampling = SamplingParams(max_tokens=int(lengths.integers(SAMPLED[0], SAMPLED[1] + 1)), seed=turn)
        history += await sample(history, sampling)
        history += numbers.integers(0, VOCABULARY, RESULT).tolist()


async def run_episodes(engine: TransformersEngine, first: int, together: int, turns: int, *, reuse: bool) -> Episodes:
    """Play `together` conversations at once; `first` is the seed of the first one's tokens."""
    engine.take_counters()
    began = time.perf_counter()
    sample = functools.partial(sampled, engine)
    await asyncio.gather(
        *(run_episode(sample, (first + index, index), turns, reuse=reuse) for index in range(together))
    )
    seconds, counters = time.perf_counter() - began, engine.take_counters()
    return Episodes(seconds, counters.prefilled_tokens, counters.cached_tokens)


async def measure(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, object]:
    """All levels of concurrency, reported line by line and returned as one table."""
    rows = []
    report(f"{'episodes':>8}{'prefilled':>12}{'without':>12}{'cached':>12}{'seconds':>10}{'without':>10}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary), positions=CONTEXT)
        settings = GenerationSettings(device="cpu", max_num_seqs=max(options.together), max_model_len=CONTEXT)
        engine = TransformersEngine(folder, settings)
        first = 0
        for together in options.together:
            runs: dict[bool, list[Episodes]] = {True: [], False: []}
            for _ in range(options.repeats):
                for reuse, taken in runs.items():
                    taken.append(await run_episodes(engine, first, together, options.turns, reuse=reuse))
                    # The next run has other tokens, which no slot holds.
                    first += together
            with_cache, without = (min(taken, key=lambda run: run.seconds) for taken in runs.values())
            ratio = without.seconds / with_cache.seconds
            rows.append({"together": together, "with": asdict(with_cache), "without": asdict(without), "ratio": ratio})
            report(
                f"{together:>8}{with_cache.prefilled_tokens:>12,}{without.prefilled_tokens:>12,}{with_cache.cached_tokens:>12,}"
                f"{with_cache.seconds:>10.2f}{without.seconds:>10.2f}{ratio:>8.2f}"
            )
        await engine.close()
    return {"turns": options.turns, "cases": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8, 32], help="episodes at once")
    parser.add_argument("--turns", type=int, default=10, help="turns of an episode, at most 13")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parse_arguments(parser, QUICK)
    figures = asyncio.run(measure(arguments, print))
    if not arguments.no_history:
        append("prefix_cache", figures)


if __name__ == "__main__":
    main()
