"""Seconds from an optimizer step to the first token with new weights, by size, engine and way of the weights.

    python benchmarks/weight_updates.py [--engines transformers sglang vllm] [--megabytes 1 10 100 1000] [--repeats 3]
        [--ways folder broadcast tensors delta adapter] [--dtype float32] [--lr 1e-6] [--rank 16]

`publish` writes the trainer's tensors as a folder in shared memory, with their checksum, which every way begins with;
`load` is from the order to load the version to the first token that it sampled, while 8 completions run; `idle` is the
same while none runs. `adapter` is one of all linear layers of the blocks. Before each version the model takes a step of
AdamW on random tokens, so that `delta` has something to send: `sent` is the share of bytes. The fastest repetition
counts; from 500 MB on there is one. Random models; servers need their environments (`just environments sglang vllm`),
an engine without one is left out. The last table is the share of bytes that a delta of one step has, by learning rate
and dtype, on the model of 10 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from engine import VOCABULARY, make_folder
from history import append, parse_arguments
from servers import HEAD, available, started, update_seconds
from transformers import AutoModelForCausalLM

from areal_actors.core.values import WeightsLocation
from areal_actors.generation.engine import Arrival
from areal_actors.generation.engines import describe_engine, server_engines
from areal_actors.generation.settings import Channel
from areal_actors.training.lora import Lora
from areal_actors.training.settings import LoraSettings
from areal_actors.weights.buckets import delta
from areal_actors.weights.folders import SHARED_MEMORY
from areal_actors.weights.transfer import without_ties, write_weights

TOGETHER = 8
MEGABYTE = 10**6
LARGE_MEGABYTES = 500
"""From this size on each case is measured once."""
LAYER_BYTES = 4 * (12 * HEAD * 512 + 3 * 512 * 2048)
"""Bytes of a layer of 512 hidden and 2,048 inner units, with four heads of queries and two of keys and values."""
WAYS = ("folder", "broadcast", "tensors", "delta", "adapter")
SHARE_MEGABYTES = 10
SHARE_RATES = (1e-6, 1e-5, 8e-4)
SHARE_STEPS = 4
"""Steps before a delta: the first steps of AdamW change more than later ones."""
QUICK = {"megabytes": [1, 2], "repeats": 1, "engines": ["transformers"]}


def shape_of(megabytes: int) -> dict[str, int]:
    """Return the shape of a model whose weights take about this number of megabytes in float32."""
    if megabytes < 20:
        return (
            {"hidden_size": 64, "num_hidden_layers": 4}
            if megabytes < 5
            else {"hidden_size": 320, "intermediate_size": 1024}
        )
    return {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": round(megabytes * MEGABYTE / LAYER_BYTES),
    }


class Trained:
    """A model that takes optimizer steps and is published, whole or as an adapter of this rank.

    Rank 0 for whole models.
    """

    def __init__(self, folder: str, rank: int, dtype: torch.dtype, lr: float) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self._folder, self._dtype = folder, dtype
        self._lora = Lora(self.model, folder, LoraSettings(rank=rank), seed=0) if rank else None
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._random = torch.Generator().manual_seed(0)

    def step(self) -> None:
        """Take a step on random tokens."""
        tokens = torch.randint(VOCABULARY, (2, 16), generator=self._random)
        self._optimizer.zero_grad()
        self.model(tokens, labels=tokens).loss.backward()
        self._optimizer.step()

    def publish(self, folder: Path) -> WeightsLocation:
        """Write the current weights."""
        if self._lora is not None:
            return self._lora.publish(self.model.state_dict(), str(folder))
        return write_weights(self.model.state_dict(), folder, self._folder, dtype=self._dtype)


async def one_case(name: str, megabytes: int, way: str, options: argparse.Namespace) -> dict[str, float]:
    """Return bytes and seconds of one engine for one size and one way of the weights."""
    rank = options.rank if way == "adapter" else 0
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory(dir=_shared_memory()) as shared:
        folder = make_folder(Path(temporary), HEAD, **shape_of(megabytes))
        trained = Trained(folder, rank, getattr(torch, options.dtype), options.lr)
        publish: list[float] = []
        load: list[float] = []
        idle: list[float] = []
        sent, location = 1.0, trained.publish(Path(shared) / "v0")
        engine, start = await started(name, folder, location, rank, "folder" if rank else cast("Channel", way))
        try:
            repeats = 1 if megabytes >= LARGE_MEGABYTES else options.repeats
            for version, (seconds, together) in enumerate(((load, TOGETHER), (idle, 0)) * repeats, start=1):
                trained.step()
                began = time.perf_counter()
                location = trained.publish(Path(shared) / f"v{version % 2}")
                publish.append(time.perf_counter() - began)
                seconds.append(await update_seconds(engine, location, together))
                arrival: Arrival | None = getattr(engine, "arrival", None)
                if arrival is not None and arrival.failure:
                    raise RuntimeError(arrival.failure)
                if arrival is not None and arrival.whole_bytes:
                    sent = arrival.sent_bytes / arrival.whole_bytes
        finally:
            await engine.close()
        fastest = {"publish": min(publish), "load": min(load), "idle": min(idle)}
        return {"bytes": _bytes(location), "start": start, **fastest, "sent": sent}


def as_published(model: torch.nn.Module, kind: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights of a model on a CPU in the dtype in which they are published."""
    return {name: tensor.to(kind) for name, tensor in without_ties(model.state_dict()).items()}


def delta_shares(lr: float) -> dict[str, float]:
    """Return the shares of a delta's bytes, and of tensors sent whole, after a step of this rate, by dtype."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary), HEAD, **shape_of(SHARE_MEGABYTES))
        trained = Trained(folder, 0, torch.float32, lr)
        for _ in range(SHARE_STEPS):
            trained.step()
        kinds = (torch.float32, torch.bfloat16)
        before = [
            {name: tensor.clone() for name, tensor in as_published(trained.model, kind).items()} for kind in kinds
        ]
        trained.step()
        shares = {}
        for kind, base in zip(kinds, before, strict=True):
            after, name = as_published(trained.model, kind), str(kind)[6:]
            whole = sum(tensor.nbytes for tensor in after.values())
            shares[name] = sum(tensor.nbytes for _, tensor in delta(base, after)) / whole
            different = [tensor for key, tensor in after.items() if not torch.equal(tensor, base[key])]
            shares[f"{name} tensors"] = sum(tensor.nbytes for tensor in different) / whole
        return shares


def _shared_memory() -> str | None:
    return str(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None


def _bytes(location: WeightsLocation) -> int:
    return sum(file.stat().st_size for file in Path(location.folder).glob("*.safetensors"))


async def measure(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, object]:
    """All sizes, engines and ways, one after the other, reported line by line and returned as two tables."""
    torch.set_num_threads(1)
    report(
        f"{'engine':>14}{'model MB':>10}{'way':>11}{'MB':>10}{'sent':>8}{'publish s':>12}{'load s':>12}{'idle s':>12}"
    )
    rows = []
    for name in available(options.engines, report):
        for megabytes, way in itertools.product(options.megabytes, options.ways):
            if way != "adapter" and way not in describe_engine(name).weight_channels:
                continue
            figures = await one_case(name, megabytes, way, options)
            rows.append({"engine": name, "megabytes": megabytes, "way": way, **figures})
            line = f"{name:>14}{megabytes:>10,}{way:>11}{figures['bytes'] / MEGABYTE:>10,.1f}{figures['sent']:>8.1%}"
            report(f"{line}{figures['publish']:>12.3f}{figures['load']:>12.3f}{figures['idle']:>12.3f}")
    shares = {f"{lr:g}": delta_shares(lr) for lr in SHARE_RATES}
    for rate, by_dtype in shares.items():
        report(
            f"delta of a step with lr {rate}: " + ", ".join(f"{name} {share:.1%}" for name, share in by_dtype.items())
        )
    return {"together": TOGETHER, "dtype": options.dtype, "lr": options.lr, "cases": rows, "delta_shares": shares}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["transformers", *server_engines()], help="engines to measure")
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=[1, 10, 100, 1000], help="sizes of the weights in float32"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="ways of the weights to the engine")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="dtype of the published weights"
    )
    parser.add_argument("--lr", type=float, default=1e-6, help="learning rate of the steps between versions")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters")
    arguments = parse_arguments(parser, QUICK)
    figures = asyncio.run(measure(arguments, print))
    if not arguments.no_history:
        append("weight_updates", figures)


if __name__ == "__main__":
    main()
