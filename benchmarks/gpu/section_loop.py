"""Section `loop`: `areal-actors run recipes/gsm8k_grpo.toml` on the random model.

Trainer and inference worker share one device.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

import psutil
from options import ROOT, Options
from report import Figures, Report

SERVERS = ("sglang", "vllm")
STEP_COMPLETED = "step.completed"
RUN = "first-hour"
LAST_LINES = 40
STOP_SECONDS = 15.0
"""The run is stopped as long before the section is."""
POLL_SECONDS = 0.5


def measure(report: Report, options: Options) -> None:
    """Run the recipe on the embedded engine, and on each server engine that this interpreter has."""
    engines = ["transformers", *(name for name in SERVERS if not options.tiny and importlib.util.find_spec(name))]
    for number, engine in enumerate(engines):
        seconds = (report.seconds_left() - STOP_SECONDS) / (len(engines) - number)
        report.case(engine, partial(run, options, engine, seconds))
    for engine in SERVERS:
        if engine not in engines:
            report.skip(
                engine, "--tiny runs the embedded engine only" if options.tiny else f"this interpreter has no {engine}"
            )


def command(options: Options, engine: str) -> list[str]:
    """Return the command line of the run."""
    sizes = options.sizes
    settings = [
        "profile=embedded",
        f"model={options.model}",
        f"run={RUN}",
        f"folder={Path(options.folder) / engine}",
        f"steps={sizes.loop_steps}",
        f"generation.engine={engine}",
        f"generation.dtype={sizes.dtype}",
        f"trainer.dtype={sizes.dtype}",
        f"generation.device={options.device}",
        f"trainer.device={options.device}",
        "trainer.optimizer.lr=1e-6",
        "task.reward=benchmarks/chaos_reward.py:varied",
        "evaluation.every_steps=0",
        "checkpoint.every_steps=0",
        *sizes.loop,
    ]
    return [sys.executable, "-m", "areal_actors", "run", "recipes/gsm8k_grpo.toml", *settings]


def run(options: Options, engine: str, seconds: float) -> Iterator[Figures]:
    """Yield the figures of one run.

    Raises:
        RuntimeError: it failed, took longer than `seconds`, or ended before its last step; with the last lines of its
            output.
    """
    folder = Path(options.folder) / engine
    folder.mkdir()
    output, began = folder / "output.txt", time.time()
    with output.open("wb") as file:
        process = subprocess.Popen(
            command(options, engine), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    with PeakMemory(process.pid) as peak:
        ended = _wait(process, seconds)
    figures = steps_of(folder / RUN / "metrics.jsonl", began)
    yield {**figures, "seconds": time.time() - began, "exit_status": process.returncode, **peak.figures()}
    if process.returncode or not ended or figures["steps"] < options.sizes.loop_steps:
        what = f"it ended with status {process.returncode}" if ended else f"it was stopped after {seconds:.0f} s"
        raise RuntimeError(f"areal-actors run: {what}\n{last_lines(folder)}")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of the run, and stop it after `seconds`; returns whether it ended by itself."""
    try:
        process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS / 2)
        process.kill()
        process.wait()
        return False
    return True


def steps_of(metrics: Path, began: float) -> dict[str, Any]:
    """Return the steps in the metrics of a run that was started at the Unix time `began`."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []
    steps = [line for line in lines if line["kind"] == STEP_COMPLETED]
    times = [step["time"] for step in steps]
    found: dict[str, Any] = {"steps": len(steps)}
    if steps:
        found["first_step_seconds"] = times[0] - began
        found["trained_tokens"] = int(sum(step["metrics"]["trained_tokens"] for step in steps))
    if len(steps) > 1:
        found["seconds_per_step"] = median(after - before for before, after in pairwise(times))
    return found


def last_lines(folder: Path) -> str:
    """Return the ends of the run's output and of that of its processes."""
    logs = folder / RUN / "logs"
    files = [folder / "output.txt", *sorted(logs.glob("*.failure")), *sorted(logs.glob("*.out"))]
    return "\n".join(f"--- {file.name}\n" + "\n".join(_lines(file)[-LAST_LINES:]) for file in files if file.exists())


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


class PeakMemory:
    """Polls, in a thread, the memory of a process with its descendants.

    On a machine with `nvidia-smi` it polls that of all devices, too.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._resident = 0
        self._device = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def figures(self) -> dict[str, int]:
        """Return the peaks in bytes; resident memory counts shared pages once per process."""
        return {"peak_resident": self._resident} | ({"peak_device": self._device} if self._device else {})

    def _poll(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            self._resident = max(self._resident, resident_bytes(self._process))
            self._device = max(self._device, device_bytes())


def resident_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process and its descendants."""
    total = 0
    with suppress(psutil.Error):
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += each.memory_info().rss
    return total


def device_bytes() -> int:
    """Return the memory in use on all CUDA devices, by whichever process; 0 without `nvidia-smi`."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10.0).stdout
        return sum(int(line) for line in answer.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
