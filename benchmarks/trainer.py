"""One optimizer step of areal-actors against TRL's GRPOTrainer: same model, rows and advantages, in separate processes.

    python -m venv .environments/trl                                                           # once
    .environments/trl/bin/python -m pip install -r benchmarks/environments/trl.txt             # once
    python benchmarks/trainer.py [embedded] [50M] [135M] [--trl .environments/trl/bin/python] [--steps 4] [--tokens
    4096]
                                [--dtype float32]

Measured: tokens of rows (prompt and completion, no padding) per CPU second and per wall second, on one thread: the
fastest step after the first. `trainer_trl.py` and `trainer_ours.py` define a step; both exclude generation and rewards.
Both use micro-batches of about the same number of tokens. The gradient norms of the first step are printed as a check
that both compute the same. `trainer_plain.py` is a loop as one would write it by hand. Memory is the peak of the
process, and its increase over the state before the first step. `--rows` sets TRL's rows per micro-batch; without it the
fastest of 8, 32 and all is used. `--quick` measures ours only and needs no TRL.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from history import ROOT, append, parse_arguments, table
from trainer_batch import SIZES, write_batch, write_model

MEGABYTE = 2**20


def run_steps(script: str, interpreter: str, *arguments: object) -> dict[str, Any]:
    """Run one process and return its figures."""
    command = [interpreter, str(Path(__file__).with_name(script)), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{script} failed with status {ended.returncode}:\n{ended.stderr[-3000:]}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def compute_figures(result: dict[str, Any], tokens: int) -> dict[str, float]:
    """Compute the compared figures."""
    return {
        "tokens_per_cpu_second": tokens / min(result["cpu"][1:]),
        "tokens_per_second": tokens / min(result["wall"][1:]),
        "peak_megabytes": result["peak"] / MEGABYTE,
        "step_megabytes": (result["peak"] - result["before"]) / MEGABYTE,
        "grad_norm": result["grad_norm"],
        "computed_tokens": result["computed_tokens"],
    }


def compare(name: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure and print one size on both sides."""
    size = SIZES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder, batch = Path(temporary) / "model", Path(temporary) / "batch.json"
        folder.mkdir()
        parameters, tokens = write_model(size, folder), write_batch(size, batch)
        ours = compute_figures(
            run_steps("trainer_ours.py", sys.executable, folder, batch, options.steps, options.tokens, options.dtype),
            tokens,
        )
        print(
            f"\n{name}: {parameters / 1e6:.1f} M parameters, {size.groups} groups of 8 rows, {tokens:,} tokens in rows"
        )
        if options.quick:
            print(table(["", *ours], [["ours", *ours.values()]]))
            return {}
        rows = [options.rows] if options.rows else sorted({8, 32, size.groups * 8})
        theirs = {
            each: compute_figures(
                run_steps("trainer_trl.py", options.trl, folder, batch, options.steps, each, options.dtype), tokens
            )
            for each in rows
        }
        plain = compute_figures(
            run_steps("trainer_plain.py", sys.executable, folder, batch, options.steps, 8, options.dtype), tokens
        )
    header = ["", "tokens/CPU s", "tokens/s", "peak MB", "of them in steps", "computed tokens", "gradient norm"]
    columns = ("tokens_per_cpu_second", "tokens_per_second", "peak_megabytes", "step_megabytes", "computed_tokens")
    sides = {"ours": ours, "a plain loop, 8 rows at once": plain} | {
        f"TRL, {each} rows at once": figures for each, figures in theirs.items()
    }
    print(
        table(
            header,
            [
                [side, *(round(figures[c]) for c in columns), f"{figures['grad_norm']:.5f}"]
                for side, figures in sides.items()
            ],
        )
    )
    best = max(theirs.values(), key=lambda figures: figures["tokens_per_cpu_second"])
    ratios = {
        column: ours[column] / best[column] for column in ("tokens_per_cpu_second", "peak_megabytes", "step_megabytes")
    }
    print("ours / fastest TRL: " + ", ".join(f"{column} {ratio:.2f}" for column, ratio in ratios.items()))
    beside_plain = ours["tokens_per_cpu_second"] / plain["tokens_per_cpu_second"]
    print(f"ours / a plain loop: tokens_per_cpu_second {beside_plain:.2f}")
    figures = {"parameters": parameters, "tokens": tokens, "ours": ours, "plain": plain, "trl": theirs}
    return {"size": name, "model": asdict(size), **figures, "ratios": {**ratios, "beside_plain": beside_plain}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help=f"{', '.join(SIZES)} (default: both)")
    parser.add_argument(
        "--trl", default=str(ROOT / ".environments/trl/bin/python"), help="the interpreter that has TRL"
    )
    parser.add_argument("--steps", type=int, default=4, help="two at least: the first is not counted")
    parser.add_argument("--tokens", type=int, default=4096, help="of our micro-batches")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of products; weights are in float32"
    )
    parser.add_argument("--rows", type=int, help="of TRL's micro-batches")
    options = parse_arguments(parser, {"sizes": ["embedded"], "steps": 2})
    if not options.quick and not Path(options.trl).exists():
        parser.error(f"{options.trl} does not exist: see the first lines of --help, or name another")
    if unknown := [name for name in options.sizes if name not in SIZES]:
        parser.error(f"there is no size `{unknown[0]}`; there are {', '.join(SIZES)}")
    figures = [compare(name, options) for name in options.sizes or SIZES]
    if not options.no_history:
        append("trainer", {"dtype": options.dtype, "sizes": figures})


if __name__ == "__main__":
    main()
