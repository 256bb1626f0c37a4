"""The first measurements on a machine with one GPU, in at most ten minutes, without a network.

    python benchmarks/gpu/first_hour.py [--json FILE] [--seconds 600] [--only parity,decode] [--device cuda]
    python benchmarks/gpu/first_hour.py --tiny        # every section on a tiny model, in about a minute on a CPU

It makes a random model with the architecture of Qwen2 and 1.5 billion parameters, and measures in sections:

    machine   versions, device, a matrix product
    model     the random model is made
    parity    log-probabilities of sampled tokens: engine, trainer and plain forward pass, in float32 and bfloat16
    decode    tokens per second of the embedded engine and of `generate` of transformers, 1 to 512 completions together
    trainer   an optimizer step with prefix sharing off and on, and compiled: seconds, tokens per second,
              model FLOPs utilisation (`mfu`)
    weights   publishing and loading of a weight version: seconds and bytes
    loop      `areal-actors run recipes/gsm8k_grpo.toml`, five steps, trainer and inference worker on one device

Each section is a process of its own with a limit in seconds: its share of --seconds, and what earlier sections left
over. An exception ends one case, and is printed with its traceback; the others run. What does not fit is reported as
skipped. The exit status is 1 if a section failed. Needed are torch, transformers 5 and the dependencies in
pyproject.toml; section `machine` lists those that are missing. Random weights sample almost uniformly, so that
differences of log-probabilities are smaller than a trained model's.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from options import FULL, TINY, Options
from printing import Printer
from run_sections import Outcome, Section, run_sections

SECTIONS = (
    Section("machine", 25),
    Section("model", 45),
    Section("parity", 90),
    Section("decode", 100),
    Section("trainer", 120),
    Section("weights", 50),
    Section("loop", 160),
)
"""Their seconds are shares of `--seconds`."""
CLEANUP_SECONDS = 10.0
"""Part of `--seconds` in which the last section may be stopped and folders are removed."""
WITHOUT_MODEL = ("machine", "model")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where a run has its weights, too
PREFIX = "areal-first-hour-"
BYTES_PER_PARAMETER = 2 * 4 * 2
"""Two versions in float32, twice while one is written."""
FULL_PARAMETERS = 1_600_000_000


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model and little work, to see that every section runs"
    )
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="of all sections (auto: cuda if available)"
    )
    parser.add_argument(
        "--only", metavar="NAMES", help=f"sections, separated by commas: {','.join(each.name for each in SECTIONS)}"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of the whole (default: 600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures, written again after every section")
    arguments = parser.parse_args(words)
    names = arguments.only.split(",") if arguments.only else [each.name for each in SECTIONS]
    if unknown := [name for name in names if name not in {each.name for each in SECTIONS}]:
        parser.error(f"there is no section `{unknown[0]}`; there are {', '.join(each.name for each in SECTIONS)}")
    if set(names) - set(WITHOUT_MODEL):
        names.append("model")
    arguments.sections = [each for each in SECTIONS if each.name in names]
    return arguments


@contextmanager
def folders(*, tiny: bool) -> Iterator[tuple[Path, Path]]:
    """Yield temporary folders, one on disk and one in shared memory if it has room."""
    needed = 0 if tiny else FULL_PARAMETERS * BYTES_PER_PARAMETER
    roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > needed
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX) as folder,
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=SHARED_MEMORY if roomy else folder) as shared,
    ):
        yield Path(folder), Path(shared)


def write(file: Path, arguments: argparse.Namespace, outcomes: Sequence[Outcome], began: float) -> None:
    """Write the figures so far."""
    whole: dict[str, Any] = {
        "benchmark": "first_hour",
        "tiny": arguments.tiny,
        "device": arguments.device,
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "model": (TINY if arguments.tiny else FULL).model,
        "limit_seconds": arguments.seconds,
        "seconds": round(time.time() - began, 1),
        "sections": [asdict(outcome) for outcome in outcomes],
    }
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    partial.replace(file)


def main() -> None:
    """Run the sections, print and write their figures."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    began = time.time()
    outcomes: list[Outcome] = []
    printer = Printer(print)

    def progress(outcome: Outcome, what: str) -> None:
        printer.show(outcome, what)
        if what == "started":
            outcomes.append(outcome)
        if what == "ended" and arguments.json:
            write(arguments.json, arguments, outcomes, began)

    with folders(tiny=arguments.tiny) as (folder, shared):
        options = Options(
            device=arguments.device, tiny=arguments.tiny, folder=str(folder), shared=str(shared), deadline=0.0
        )
        run_sections(arguments.sections, options, max(arguments.seconds - CLEANUP_SECONDS, 1.0), progress)
    printer.conclude(outcomes, time.time() - began)
    if any(outcome.status == "failed" for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
