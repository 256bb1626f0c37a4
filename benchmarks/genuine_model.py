"""Speed and memory at the size of a genuine model, side by side with what people use otherwise.

    python benchmarks/genuine_model.py [--model FOLDER] [--parts generation memory] [--together 1 8 32 128] [--group 1]
    [--threads 1]

Without a model it measures random weights in the shape of SmolLM2-135M.

`generation`: tokens per second of the embedded engine beside `generate` of transformers, which gets the whole batch at
once, left-padded, and the faster of its caches; the engine gets single requests, and records log-probabilities and
weight versions, too. Prompts have 50 to 100 tokens, each for `--group` completions; 64 are sampled at temperature 1,
without an end. Before, greedy completions of both must be equal. Runs of the two alternate in one process, and the
fastest of each counts: compare the ratios, those of CPU seconds where the machine is shared.

`memory`: resident memory of a process that holds the engine alone, with 4 short requests together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from engine import make_folder
from history import append, parse_arguments, table
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from areal_actors.core.values import SamplingParams
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT_TOKENS = (50, 101)
"""Bounds of the lengths of prompts."""
CACHES = ("dynamic", "static")
"""Caches of `generate`."""
GREEDY_PROMPTS = 4
EQUAL = 0.98
"""Least share of greedy tokens before the first that differs; two logits may be as good as equal."""
MEMORY_REQUESTS = 4
SHAPE = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
"""Shape of SmolLM2-135M."""
QUICK_SHAPE = {"vocab_size": 2000, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
QUICK = {"tokens": 4, "repeats": 1, "together": [1, 3], "shape": QUICK_SHAPE}
HELD = "--held"
"""First argument of the process that measures memory."""
MEBIBYTE = 2**20
Prompts = Sequence[Sequence[int]]


@dataclass
class Times:
    """Wall and CPU seconds of repeated calls."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add the seconds of the block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)


@dataclass(frozen=True)
class Figures:
    """Tokens per second at one level of concurrency, and speed relative to `generate`."""

    together: int
    engine: float
    generate: float
    cache: str
    """The faster cache of `generate`."""
    ratio: float
    cpu_ratio: float
    """Ratio of CPU seconds."""


class Generators:
    """The two that are compared, of the same weights, with the same number of threads; neither ends a completion."""

    def __init__(self, folder: str, threads: int, tokens: int) -> None:
        torch.set_num_threads(threads)
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        self.engine = open_engine(folder, threads)
        self.tokens = tokens

    async def ours(self, prompts: Prompts, temperature: float = 1.0) -> list[list[int]]:
        """Completions of the engine."""
        return await answers(self.engine, prompts, SamplingParams(max_tokens=self.tokens, temperature=temperature))

    @torch.inference_mode()
    def theirs(self, prompts: Prompts, cache: str, **how: Any) -> list[list[int]]:
        """Completions of `generate`."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        options = {
            "max_new_tokens": self.tokens,
            "pad_token_id": 0,
            "cache_implementation": cache,
            "disable_compile": True,
            **how,
        }
        completed: list[list[int]] = self.model.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()
        return completed


def open_engine(folder: str, threads: int) -> TransformersEngine:
    """The engine with its default settings, whose completions do not end by themselves."""
    engine = TransformersEngine(folder, GenerationSettings(device="cpu", threads=threads))
    engine._loop._slots._stops[:] = False  # noqa: SLF001 - no setting has a completion go on beyond its end
    return engine


async def answers(engine: TransformersEngine, prompts: Prompts, sampling: SamplingParams) -> list[list[int]]:
    """Completions of the engine to requests that are sent at once."""

    async def complete(prompt: Sequence[int]) -> list[int]:
        return [
            token
            async for chunk in engine.generate("benchmark", prompt, sampling)
            for token in chunk.columns.ids_array().tolist()
        ]

    return list(await asyncio.gather(*map(complete, prompts)))


async def count_equal(both: Generators, prompts: Prompts) -> int:
    """Number of greedy tokens before the first that differs, over all prompts.

    Raises:
        SystemExit: too few are equal.
    """
    equal = 0
    for prompt, own in zip(prompts, await both.ours(prompts, temperature=0.0), strict=True):
        (other,) = both.theirs([prompt], "dynamic", do_sample=False)
        equal += next(
            (place for place, pair in enumerate(zip(own, other, strict=True)) if pair[0] != pair[1]), both.tokens
        )
    if equal < EQUAL * both.tokens * len(prompts):
        raise SystemExit(
            f"{equal} of {both.tokens * len(prompts)} greedy tokens are those of `generate`: its speed means nothing"
        )
    return equal


async def compare(both: Generators, draw: Callable[[int], Prompts], together: int, group: int, repeats: int) -> Figures:
    """Alternate runs of engine and `generate`, with new prompts each time, which the prefix cache does not hold."""
    times = {name: Times() for name in ("engine", *CACHES)}
    for _ in range(repeats):
        prompts = [prompt for prompt in draw(-(-together // group)) for _ in range(group)][:together]
        with times["engine"].measure():
            await both.ours(prompts)
        for cache in CACHES:
            with times[cache].measure():
                both.theirs(prompts, cache, do_sample=True, temperature=1.0, top_k=0)
    cache = min(CACHES, key=lambda name: min(times[name].cpu))
    ours, theirs, sampled = times["engine"], times[cache], together * both.tokens
    speeds = [sampled / min(one.wall) for one in (ours, theirs)]
    return Figures(together, *speeds, cache, min(theirs.wall) / min(ours.wall), min(theirs.cpu) / min(ours.cpu))


async def generation(folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """Part `generation`."""
    both = Generators(folder, options.threads, options.tokens)
    numbers = np.random.default_rng(0)

    def draw(count: int) -> Prompts:
        return [
            numbers.integers(20, both.engine.vocabulary_size, length).tolist()
            for length in numbers.integers(*PROMPT_TOKENS, count)
        ]

    equal = await count_equal(both, draw(GREEDY_PROMPTS))
    print(f"greedy: {equal} of {GREEDY_PROMPTS * options.tokens} tokens are those of `generate`", flush=True)
    rows = []
    for together in options.together:
        rows.append(asdict(await compare(both, draw, together, options.group, options.repeats)))
        print(
            " ".join(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in rows[-1].values()),
            flush=True,
        )
    await both.engine.close()
    header = ("together", "engine tok/s", "generate tok/s", "cache", "ratio", "ratio of CPU")
    print(table(header, [tuple(row.values()) for row in rows]))
    return {"equal": equal, "compared": GREEDY_PROMPTS * options.tokens, "cases": rows}


def memory(folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """Part `memory`: in a process of its own, with nothing else in it."""
    words = [sys.executable, __file__, HELD, folder, str(options.tokens)]
    figures: dict[str, Any] = json.loads(
        subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    print(table(("MiB", "resident"), [(name, float(value)) for name, value in figures.items()]))
    return figures


async def hold_engine(folder: str, tokens: int) -> dict[str, float]:
    """Resident memory in MiB, at moments of a process that holds the engine."""
    process, figures = psutil.Process(), {}

    def note(moment: str) -> None:
        figures[moment] = round(process.memory_info().rss / MEBIBYTE, 1)

    note("modules")
    engine = open_engine(folder, 1)
    note("engine")
    prompts = np.random.default_rng(0).integers(20, engine.vocabulary_size, (MEMORY_REQUESTS, 60)).tolist()
    await answers(engine, prompts, SamplingParams(max_tokens=tokens))
    note(f"{MEMORY_REQUESTS} requests")
    await answers(engine, prompts * 32, SamplingParams(max_tokens=tokens))
    note(f"{32 * MEMORY_REQUESTS} requests")
    figures["weights"] = round(sum(weight.nbytes for weight in engine.model.parameters()) / MEBIBYTE, 1)
    await engine.close()
    return figures


PARTS = ("generation", "memory")


def main() -> None:
    """Measure and print."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if HELD in sys.argv:
        print(json.dumps(asyncio.run(hold_engine(sys.argv[2], int(sys.argv[3])))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", metavar="FOLDER", help="Hugging Face folder (default: random weights)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8, 32, 128], help="completions decoded together")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per completion")
    parser.add_argument("--group", type=int, default=1, help="completions of one prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.set_defaults(shape=SHAPE)
    options = parse_arguments(parser, QUICK)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or make_folder(Path(temporary), head_dim=64, positions=1024, **options.shape)
        figures: dict[str, Any] = {
            "model": Path(options.model).name or "random",
            "threads": options.threads,
            "group": options.group,
        }
        if "generation" in options.parts:
            figures["generation"] = asyncio.run(generation(folder, options))
        if "memory" in options.parts:
            figures["memory"] = memory(folder, options)
    if not options.no_history:
        append("genuine_model", figures)


if __name__ == "__main__":
    main()
