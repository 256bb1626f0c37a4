"""The budget that `areal-actors check` prints, beside what a run then takes: memory by process, and seconds a step.

    python benchmarks/budget.py [--model FOLDER ...] [--shapes SHAPE ...] [--limit GIGABYTES] [--steps 4]

Models are folders, and random ones of several shapes with the tokenizer of the embedded model. Each is measured as
before a run (`areal_actors/calibration/`), then a run of `recipes/smollm2.toml` takes some steps, and the memory that
each of its processes allocates is sampled. Seconds are those between two steps, after the first; tokens are those of
the run's own prompts and answers. With `--limit` everything runs within a control group of this memory, which needs
root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch
from history import ROOT, append, parse_arguments, table
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from areal_actors.cli.check_static import measure_machine
from areal_actors.core.devices import detect_cuda
from areal_actors.core.machine import anonymous_bytes, detect_machine
from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer
from areal_actors.reader import open_run
from areal_actors.recipe.budget import Lengths, process_memory, step_seconds
from areal_actors.recipe.load import load

RECIPE = ROOT / "recipes" / "smollm2.toml"
SETTINGS = ("trainer.batch_size=4", "evaluation.tasks=0", "checkpoint.every_steps=0", "sampling.max_tokens=32")
COMMON = {"bos_token_id": None, "max_position_embeddings": 1024}
SHAPES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Llama, 17 M, vocabulary 32,000": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "vocab_size": 32_000,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            **COMMON,
        },
    ),
    "Qwen3, 66 M, vocabulary 151,936": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {
            "vocab_size": 151_936,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "tie_word_embeddings": True,
            **COMMON,
        },
    ),
    "Llama, 120 M, untied": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "vocab_size": 32_000,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 10,
            "num_attention_heads": 12,
            **COMMON,
        },
    ),
    "Qwen3, 100 M, narrow and deep": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {
            "vocab_size": 49_152,
            "hidden_size": 384,
            "intermediate_size": 1152,
            "num_hidden_layers": 40,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "tie_word_embeddings": True,
            **COMMON,
        },
    ),
}
QUICK_SHAPE = {
    "vocab_size": 16_000,
    "hidden_size": 384,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    **COMMON,
}
SAMPLE_SECONDS = 0.3
GROUP = Path("/sys/fs/cgroup/memory/areal-budget")


def main() -> None:
    """Measure, print a table and append a line to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=[], help="folders of models")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--limit", type=float, default=0.0, help="gigabytes of a control group; 0 for none")
    parser.add_argument("--steps", type=int, default=4)
    options = parse_arguments(parser, {"shapes": ["quick"], "steps": 2})
    if options.limit:
        enter_group(int(options.limit * 1e9))
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in (*options.model, *options.shapes):
            folder = name if name in options.model else write_random(name, Path(temporary) / f"model-{len(rows)}")
            rows.append(
                {"model": Path(name).name, **compare(folder, Path(temporary) / f"runs-{len(rows)}", options.steps)}
            )
            print(json.dumps(rows[-1]), flush=True)
    header = ("model", "memory GB, predicted", "taken", "error", "s a step, predicted", "taken", "error")
    print(table(header, [cells(row) for row in rows]))
    if not options.no_history:
        print(
            append(
                "budget",
                {
                    "limit": options.limit,
                    "steps": options.steps,
                    "free": detect_machine(ROOT).memory_bytes,
                    "rows": rows,
                },
            )
        )


def cells(row: dict[str, Any]) -> Sequence[object]:
    """A row of the table."""
    return (
        row["model"],
        f"{row['predicted_bytes'] / 1e9:.2f}",
        f"{row['taken_bytes'] / 1e9:.2f}",
        f"{row['predicted_bytes'] / row['taken_bytes'] - 1:+.0%}",
        f"{row['predicted_seconds']:.1f}",
        f"{row['taken_seconds']:.1f}",
        f"{row['predicted_seconds'] / row['taken_seconds'] - 1:+.0%}",
    )


def write_random(name: str, folder: Path) -> str:
    """Write a model of random weights.

    Its tokenizer has fewer tokens than the model, so that answers run to their limit.
    """
    config, model, shape = SHAPES.get(name, (LlamaConfig, LlamaForCausalLM, QUICK_SHAPE))
    tokenizer = train_tokenizer()
    folder.mkdir(parents=True)
    write_tokenizer(tokenizer, folder)
    torch.manual_seed(0)
    ends = {"eos_token_id": tokenizer.token_to_id("<|im_end|>"), "pad_token_id": tokenizer.token_to_id("<|endoftext|>")}
    model(config(**shape, **ends)).save_pretrained(folder)
    return str(folder)


def compare(folder: str, runs: Path, steps: int) -> dict[str, Any]:
    """Predict and take some steps of a run of this model."""
    words = [f"model={folder}", f"steps={steps}", f"folder={runs}", *SETTINGS]
    resolved = load([RECIPE], words, detect_cuda(), measure=measure_machine)
    if resolved.calibration is None:
        raise SystemExit(
            f"{folder} was not measured: a model of 10 million parameters or fewer, or the measurement failed"
        )
    taken = run(words)
    opened = open_run(runs / resolved.recipe.run)
    times = opened.steps["time"]
    lengths = lengths_of(opened)
    predicted = {use.process: use.size for use in process_memory(resolved.recipe, resolved.calibration, lengths)}
    named = {name: size for name, size in predicted.items() if name in taken}
    return {
        "predicted_bytes": sum(named.values()),
        "taken_bytes": sum(taken[name] for name in named),
        "predicted": named,
        "taken": {name: taken[name] for name in named},
        "predicted_seconds": step_seconds(resolved.recipe, resolved.calibration, lengths).step,
        "taken_seconds": statistics.fmean(later - earlier for earlier, later in pairwise(times)),
        "lengths": lengths,
    }


def lengths_of(opened: Any) -> Lengths:
    """Mean tokens of the run's prompts and answers."""
    calls = opened.interactions
    return Lengths(prompt=statistics.fmean(calls["prompt_tokens"]), answer=statistics.fmean(calls["completion_tokens"]))


def run(words: Sequence[str]) -> dict[str, int]:
    """Run the recipe; returns the peak of the memory that each of its processes allocates, by name."""
    command = [sys.executable, "-m", "areal_actors", "run", str(RECIPE), *words]
    peaks: defaultdict[str, int] = defaultdict(int)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        while process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    name = child.cmdline()[-1]
                    peaks[name] = max(peaks[name], anonymous_bytes(child.pid))
                except (psutil.Error, IndexError):
                    continue
            time.sleep(SAMPLE_SECONDS)
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{output.read().decode(errors='replace')[-3000:]}")
    return dict(peaks)


def enter_group(size: int) -> None:
    """Move this process into a control group (version 1) with a limit of memory."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.limit_in_bytes").write_text(str(size))
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


if __name__ == "__main__":
    main()
