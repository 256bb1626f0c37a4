"""Seconds from an optimizer step to the first token with new weights, by the size of the weights and by engine.

    python benchmarks/weight_updates.py [--engines transformers sglang vllm] [--megabytes 1 10 100 1000] [--repeats 3] [--rank 16]

`publish` writes the trainer's tensors as a folder in shared memory, with their checksum; `load` is from the order to load the folder to
the first token that it sampled, while 8 completions run. Each size twice: the whole model, and an adapter of all linear layers of its
blocks. The fastest repetition counts. Random models in float32; servers need their environments (`just environments sglang vllm`), an
engine without one is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from engine import make_folder
from history import append, parse_arguments
from servers import HEAD, available, started, update_seconds
from transformers import AutoModelForCausalLM

from areal_actors.core.values import WeightsLocation
from areal_actors.generation.settings import SERVER_ENGINES
from areal_actors.training.lora import Lora
from areal_actors.training.settings import LoraSettings
from areal_actors.weights.folders import SHARED_MEMORY
from areal_actors.weights.transfer import write_weights

TOGETHER = 8
MEGABYTE = 10**6
LAYER_BYTES = 4 * (12 * HEAD * 512 + 3 * 512 * 2048)
"""Bytes of a layer of 512 hidden and 2,048 inner units, with four heads of queries and two of keys and values."""
QUICK = {"megabytes": [1, 2], "repeats": 1, "engines": ["transformers"]}


def shape_of(megabytes: int) -> dict[str, int]:
    """Return the shape of a model whose weights take about this number of megabytes in float32."""
    if megabytes < 20:
        return {"hidden_size": 64, "num_hidden_layers": 4} if megabytes < 5 else {"hidden_size": 320, "intermediate_size": 1024}
    return {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": round(megabytes * MEGABYTE / LAYER_BYTES)}


def publisher(folder: str, rank: int) -> Callable[[Path], WeightsLocation]:
    """Return what publishes the model of a folder, or an adapter of this rank, into another folder."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    if not rank:
        return lambda published: write_weights(model.state_dict(), published, folder)
    lora = Lora(model, folder, LoraSettings(rank=rank), seed=0)
    return lambda published: lora.publish(model.state_dict(), str(published))


async def one_size(name: str, megabytes: int, repeats: int, rank: int) -> dict[str, float]:
    """Return bytes and seconds of one engine for one size; rank 0 for whole models."""
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory(dir=_shared_memory()) as shared:
        folder = make_folder(Path(temporary), HEAD, **shape_of(megabytes))
        publish_into = publisher(folder, rank)
        publish, load, location = [], [], publish_into(Path(shared) / "v0")
        engine, start = await started(name, folder, location, rank)
        try:
            for version in range(1, repeats + 1):
                began = time.perf_counter()
                location = publish_into(Path(shared) / f"v{version % 2}")
                publish.append(time.perf_counter() - began)
                load.append(await update_seconds(engine, location, TOGETHER))
        finally:
            await engine.close()
        return {"bytes": _bytes(location), "start": start, "publish": min(publish), "load": min(load)}


def _shared_memory() -> str | None:
    return str(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None


def _bytes(location: WeightsLocation) -> int:
    return sum(file.stat().st_size for file in Path(location.folder).glob("*.safetensors"))


async def measure(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, object]:
    """All sizes and engines, one after the other, reported line by line and returned as one table."""
    torch.set_num_threads(1)
    report(f"{'engine':>14}{'model MB':>10}{'weights':>10}{'MB':>10}{'publish s':>12}{'load s':>12}")
    rows = []
    for name in available(options.engines, report):
        for megabytes, rank in itertools.product(options.megabytes, (0, options.rank)):
            figures = await one_size(name, megabytes, options.repeats, rank)
            rows.append({"engine": name, "megabytes": megabytes, "rank": rank, **figures})
            size, kind = figures["bytes"] / MEGABYTE, "adapter" if rank else "whole"
            report(f"{name:>14}{megabytes:>10,}{kind:>10}{size:>10,.1f}{figures['publish']:>12.3f}{figures['load']:>12.3f}")
    return {"together": TOGETHER, "cases": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["transformers", *SERVER_ENGINES], help="engines to measure")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 10, 100, 1000], help="sizes of the weights in float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters")
    arguments = parse_arguments(parser, QUICK)
    figures = asyncio.run(measure(arguments, print))
    if not arguments.no_history:
        append("weight_updates", figures)


if __name__ == "__main__":
    main()
