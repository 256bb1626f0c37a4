"""Tokens per second and weight updates of the embedded engine, SGLang and vLLM, through the same interface.

    python benchmarks/servers.py [--engines transformers sglang vllm] [--shape small] [--tokens 64] [--repeats 3]

The engines live at the same time, runs of them and of `generate` alternate, and the fastest of each counts: compare the
columns, which share the machine. Servers run in processes of their own, with one thread for the model, as the embedded
engine has. `update` is from the order to load new weights to the first token that they sampled, while as many
completions run. Servers need their environments (`just environments sglang vllm`); an engine without one is left out.
The weights are random: `small` is the shape of benchmarks/engine.py, `135M` that of SmolLM2.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import numpy as np
import torch
from engine import PROMPT, VOCABULARY, engine_seconds, generate_seconds, make_folder
from genuine_model import SHAPE
from history import append, parse_arguments
from transformers import AutoModelForCausalLM, PreTrainedModel

from areal_actors.core.errors import SetupError
from areal_actors.core.values import SamplingParams, WeightsLocation
from areal_actors.generation.engine import EnginePlace, GenerationEngine
from areal_actors.generation.engines import describe_engine, server_engines
from areal_actors.generation.named import engine_factory
from areal_actors.generation.servers.server_process import interpreter
from areal_actors.generation.settings import Channel, GenerationSettings, ServerSettings
from areal_actors.weights.transfer import write_weights

HEAD = 32
"""Narrowest attention head that vLLM has on a CPU."""
CONTEXT = 256
WEIGHTS_SECONDS = 600.0
"""Time limit of a server for a version: the machine may be busy."""
SHAPES: dict[str, dict[str, int]] = {"small": {"head_dim": HEAD}, "135M": {"head_dim": 64, **SHAPE}}
QUICK = {"tokens": 8, "repeats": 1, "together": [1, 4], "engines": ["transformers"]}


def available(names: list[str], report: Callable[[str], None]) -> list[str]:
    """Return the engines whose server can be started; report the others."""
    found = []
    for name in names:
        try:
            if describe_engine(name).is_server:
                interpreter(name, GenerationSettings().server, Path.cwd())
            found.append(name)
        except SetupError as error:
            report(f"left out: {error}")
    return found


async def started(
    name: str, folder: str, location: WeightsLocation, adapter_rank: int = 0, weights: Channel = "folder"
) -> tuple[GenerationEngine, float]:
    """Return an engine with weights, adapters if they have a rank, and the seconds to its first token."""
    # The model has no end-of-sequence token, so that all completions have the same length; grammars need one.
    options = {"grammar-backend": "none"} if name == "sglang" else {}
    server = ServerSettings(weights=weights, weights_seconds=WEIGHTS_SECONDS)
    settings = GenerationSettings(
        engine=name, device="cpu", max_num_seqs=128, max_model_len=CONTEXT, options=options, server=server
    )
    began = time.perf_counter()
    make = engine_factory(settings, Path.cwd(), EnginePlace(logs=Path(folder) / "logs", adapter_rank=adapter_rank))
    engine = await asyncio.to_thread(make, folder)
    await engine.load_weights(location, 0)
    await first_token(engine)
    return engine, time.perf_counter() - began


async def first_token(engine: GenerationEngine) -> None:
    """Sample one token."""
    async for _ in engine.generate("first", [1, 2, 3], SamplingParams(max_tokens=1)):
        pass


async def update_seconds(engine: GenerationEngine, location: WeightsLocation, together: int) -> float:
    """Return the seconds from the order to load weights, while completions run, to a token of the new weights.

    The completions are ended then.
    """
    prompts = np.random.default_rng(1).integers(0, VOCABULARY, (together, PROMPT)).tolist()
    running = asyncio.create_task(engine_seconds(engine, prompts, [CONTEXT - PROMPT] * together))
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    await engine.load_weights(location, engine.weight_version + 1)
    await first_token(engine)
    seconds = time.perf_counter() - began
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await first_token(engine)  # by then the engine has ended the completions
    return seconds


async def compare(
    engines: dict[str, GenerationEngine],
    model: PreTrainedModel,
    location: WeightsLocation,
    options: argparse.Namespace,
    together: int,
) -> dict[str, float]:
    """Return tokens per second and update seconds at one level of concurrency."""
    prompts = np.random.default_rng(together).integers(0, VOCABULARY, (together, PROMPT)).tolist()
    lengths = [options.tokens] * together
    seconds: dict[str, list[float]] = {
        name: [] for name in (*engines, "generate", *(f"{name} update" for name in engines))
    }
    for _ in range(options.repeats):
        for name, engine in engines.items():
            seconds[name].append(await engine_seconds(engine, prompts, lengths))
            seconds[f"{name} update"].append(await update_seconds(engine, location, together))
        seconds["generate"].append(generate_seconds(model, prompts, lengths, together))
    best = {name: min(taken) for name, taken in seconds.items()}
    return {name: taken if name.endswith("update") else sum(lengths) / taken for name, taken in best.items()}


async def measure(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, object]:
    """All levels of concurrency, reported line by line and returned as one table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary), **SHAPES[options.shape])
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        location = write_weights(model.state_dict(), Path(temporary) / "weights" / "v1", folder)
        async with AsyncExitStack() as stack:
            engines: dict[str, GenerationEngine] = {}
            starts = {}
            for name in available(options.engines, report):
                engines[name], starts[name] = await started(name, folder, location)
                stack.push_async_callback(engines[name].close)
                report(f"{name}: {starts[name]:.1f} s to the first token")
            columns = (*engines, "generate")
            report(
                f"{'together':>10}"
                + "".join(f"{f'{name} tok/s':>20}" for name in columns)
                + "".join(f"{f'{name} update s':>24}" for name in engines)
            )
            rows = []
            for together in options.together:
                figures = await compare(engines, model, location, options, together)
                rows.append({"together": together, **figures})
                speeds = "".join(f"{figures[name]:>20,.0f}" for name in columns)
                report(f"{together:>10}{speeds}" + "".join(f"{figures[f'{name} update']:>24.3f}" for name in engines))
    return {"shape": options.shape, "start_seconds": starts, "cases": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["transformers", *server_engines()], help="engines to compare")
    parser.add_argument("--shape", choices=SHAPES, default="small", help="shape of the model")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per completion")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8, 32, 128], help="completions decoded together")
    arguments = parse_arguments(parser, QUICK)
    figures = asyncio.run(measure(arguments, print))
    if not arguments.no_history:
        append("servers", figures)


if __name__ == "__main__":
    main()
