"""`trainer.compile` and compiled flex attention: seconds of optimizer steps and of attention, with and without.

    PYTHONPATH=benchmarks python benchmarks/archive/trainer_compile.py [embedded] [50M] [--repeats 5] [--tokens 2048]

`steps`: optimizer steps of `TorchTrainer` on the rows of `trainer_batch.py`, in both layouts of a micro-batch (branches
with shared prefixes; padded rows, which the model's own forward computes), and with LoRA. `compile_cpu` and
`compile_wall` are seconds of the first step minus a later one: the compilation, without a cache. Then the compiled and
the plain trainer alternate, and the fastest step of each counts. `difference` is that of the gradient norms of the
first step, relative.

`attention`: the attention of a group of 8 rows with one prompt, forward pass only, by the trainer's planned kernel
calls and by flex_attention compiled for the block mask. flex_attention has no backward pass on a CPU: the error of a
call that asks for one is printed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from history import append, parse_arguments, table
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from trainer_batch import SIZES, write_batch, write_model
from trainer_ours import on_policy, sequences_of
from trainer_sharing import one_prompt

from areal_actors.core.values import TrainingSequence
from areal_actors.training.algorithms import Grpo
from areal_actors.training.packing.block_mask import block_mask
from areal_actors.training.packing.packed_tree import PackedTree
from areal_actors.training.packing.prefix_tree import build_prefix_tree
from areal_actors.training.packing.tensors import Sharing
from areal_actors.training.packing.tree_attention import attend
from areal_actors.training.settings import LoraSettings, OptimizerSettings, TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

CPU = torch.device("cpu")
CASES: dict[str, tuple[Sharing, LoraSettings | None]] = {
    "branches": ("on", None),
    "padded": ("off", None),
    "padded, LoRA": ("off", LoraSettings()),
}
HEADS, KV_HEADS, HEAD_DIM = 8, 4, 64
SHARED = (256, 1024)
"""Tokens of the shared prompts."""
QUICK = {"sizes": ["embedded"], "repeats": 1, "cases": ["padded"], "prompts": [64]}


def seconds_of(call: Callable[[], object]) -> tuple[float, float]:
    """Return CPU seconds, those of compilers included, and wall seconds of a call."""
    began = sum(os.times()[:4]), time.perf_counter()
    call()
    return sum(os.times()[:4]) - began[0], time.perf_counter() - began[1]


def alternate(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the CPU seconds of the fastest of some alternating calls of each."""
    taken = [{name: seconds_of(call)[0] for name, call in calls.items()} for _ in range(repeats)]
    return {name: min(each[name] for each in taken) for name in calls}


def make_trainer(
    folder: str, sharing: Sharing, lora: LoraSettings | None, tokens: int, *, compiles: bool
) -> TorchTrainer:
    """Return a trainer without the check of log-probabilities."""
    settings = TrainerSettings(
        device="cpu",
        logprob_check_sequences=0,
        microbatch_tokens=tokens,
        prefix_sharing=sharing,
        lora=lora,
        compile=compiles,
        optimizer=OptimizerSettings(lr=1e-4),
    )
    return TorchTrainer(folder, Grpo(), settings, total_steps=100)


def steps(name: str, case: str, repeats: int, tokens: int) -> dict[str, object]:
    """Measure the steps of one model in one case."""
    torch.compiler.reset()  # a process with one trainer does not compile the same code for other models too
    sharing, lora = CASES[case]
    with tempfile.TemporaryDirectory() as temporary:
        folder, batch = Path(temporary) / "model", Path(temporary) / "batch.json"
        folder.mkdir()
        write_model(SIZES[name], folder)
        write_batch(SIZES[name], batch)
        trainers = {
            kind: make_trainer(str(folder), sharing, lora, tokens, compiles=compiles)
            for kind, compiles in (("plain", False), ("compiled", True))
        }
        rows: list[TrainingSequence] = on_policy(trainers["plain"], sequences_of(str(batch)))
        metrics: dict[str, dict[str, float]] = {}
        first = {
            kind: seconds_of(lambda kind=kind, trainer=trainer: metrics.update({kind: trainer.step(rows)}))  # type: ignore[misc]
            for kind, trainer in trainers.items()
        }
        norms = {kind: measured["grad_norm"] for kind, measured in metrics.items()}
        again = seconds_of(lambda: trainers["compiled"].step(rows))
        fastest = alternate(
            {kind: lambda trainer=trainer: trainer.step(rows) for kind, trainer in trainers.items()}, repeats
        )  # type: ignore[misc]
    return {
        "size": name,
        "case": case,
        **fastest,
        "ratio": fastest["plain"] / fastest["compiled"],
        "compile_cpu": first["compiled"][0] - again[0],
        "compile_wall": first["compiled"][1] - again[1],
        "difference": abs(norms["compiled"] / norms["plain"] - 1),
    }


def attention(prompt: int, repeats: int) -> dict[str, object]:
    """Measure the attention of a group."""
    tree = build_prefix_tree([row.token_ids for row in one_prompt(prompt)])
    tokens = len(tree.token_ids)
    plan, mask = PackedTree.of(tree, CPU).plan, block_mask(tree, CPU)
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(tokens, heads, HEAD_DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    kernel, scale = torch.compile(flex_attention), HEAD_DIM**-0.5

    def flex() -> Tensor:
        batched = (column.transpose(0, 1).unsqueeze(0) for column in (queries, keys, values))
        attended: Tensor = kernel(*batched, block_mask=mask, scale=scale, enable_gqa=True)
        return attended[0].transpose(0, 1)

    with torch.no_grad():
        first = seconds_of(flex)
        difference = float((flex() - attend(queries, keys, values, plan, scale)).abs().max())
        fastest = alternate({"planned": lambda: attend(queries, keys, values, plan, scale), "flex": flex}, repeats)
    try:
        queries.requires_grad_()
        flex().sum().backward()
        backward = "has one"
    except Exception as error:  # noqa: BLE001 - the kind depends on torch
        backward = str(error).strip().splitlines()[0]
    ratio = fastest["flex"] / fastest["planned"]
    return {
        "prompt": prompt,
        "tokens": tokens,
        **fastest,
        "ratio": ratio,
        "compile_cpu": first[0],
        "difference": difference,
        "backward": backward,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help=f"{', '.join(SIZES)} (default: all)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="micro-batches")
    parser.add_argument(
        "--prompts", nargs="+", type=int, default=list(SHARED), help="tokens of the shared prompt of the attention"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2048, help="of a micro-batch")
    options = parse_arguments(parser, QUICK)
    torch.set_num_threads(1)
    columns = ("plain", "compiled", "ratio", "compile_cpu", "compile_wall")
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        measured = [
            steps(name, case, options.repeats, options.tokens)
            for name in options.sizes or SIZES
            for case in options.cases
        ]
        print("\nCPU seconds of a step, and of compiling")
        rows = [
            [f"{row['size']}, {row['case']}", *(row[column] for column in columns), f"{row['difference']:.0e}"]
            for row in measured
        ]
        print(table(["", *columns, "difference"], rows))
        attended = [attention(prompt, options.repeats) for prompt in options.prompts]
    columns = ("tokens", "planned", "flex", "ratio", "compile_cpu")
    print("\nCPU seconds of attention, forward pass")
    rows = [[str(row["prompt"]), *(row[column] for column in columns), f"{row['difference']:.0e}"] for row in attended]
    print(table(["prompt", *columns, "difference"], rows))
    print(f"backward pass of flex_attention: {attended[0]['backward']}")
    if not options.no_history:
        append("trainer_compile", {"steps": measured, "attention": attended, "tokens": options.tokens})


if __name__ == "__main__":
    main()
