"""Runs the measurements of this machine in processes of their own, and returns their results. Does not import torch.

Generation and training are measured at the same time where a run does both at the same time: on most machines cores
share the bandwidth of the memory.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.module_command import module_command
from areal_actors.core.values import Value

DEADLINE_SECONDS = 60.0
"""Maximum duration of all measurements; on an idle machine they take about 10 s, most of it to import torch."""
POLL_SECONDS = 0.05


class DecodeCalibration(Value):
    """Measurements of the embedded engine for the whole model."""

    step_seconds: dict[int, float]
    """Seconds of a decode step by the number of completions decoded together, sampling included."""
    prefill_seconds: float
    """Seconds per prompt token."""
    base_bytes: int
    """Memory that a process with torch and transformers allocates, without a model."""


class TrainCalibration(Value):
    """Measurements of the trainer for the whole model."""

    forward_seconds: float
    """Seconds per token of a forward pass through the layers, without gradient."""
    train_seconds: float
    """Seconds per token of forward and backward pass through the layers."""
    head_seconds: float
    """Seconds per trained token of the output head, forward and backward."""
    update_seconds: float
    """Seconds of an optimizer update of all weights."""
    token_bytes: float
    """Memory of activations per token of a micro-batch, all layers together."""
    base_bytes: int
    """As in `DecodeCalibration`."""


class Calibration(Value):
    """Speed and memory of this machine for a model."""

    decode: DecodeCalibration | None = None
    """None where nothing is sampled here."""
    train: TrainCalibration | None = None
    """None where nothing is trained."""


class Measurement(Value):
    """Subject of a measuring process."""

    config: str
    """Folder with the model's config.json."""
    threads: int
    dtype: str
    context: int
    """Tokens of a prompt and its completion."""
    most_sequences: int
    """Largest number of completions decoded together."""
    batch_invariant: bool = False
    microbatch_tokens: int = 256
    optimizer: str = "adamw"


def calibrate(decode: Measurement | None, train: Measurement | None, *, together: bool) -> Calibration:
    """Measure this machine for a model.

    Args:
        decode: the engine's settings; None to measure training only.
        train: the trainer's; None to measure generation only.
        together: measure both at the same time, as an asynchronous run has them.

    Raises:
        SetupError: a measurement failed or took longer than `DEADLINE_SECONDS`; has the end of its output.
    """
    wanted = {
        kind: measurement for kind, measurement in (("decode", decode), ("train", train)) if measurement is not None
    }
    batches = [wanted] if together else [{kind: measurement} for kind, measurement in wanted.items()]
    results = {kind: result for batch in batches for kind, result in _measure(batch).items()}
    return Calibration(
        decode=msgspec.json.decode(results["decode"], type=DecodeCalibration) if decode is not None else None,
        train=msgspec.json.decode(results["train"], type=TrainCalibration) if train is not None else None,
    )


def _measure(wanted: Mapping[str, Measurement]) -> dict[str, bytes]:
    """Run one process for each; a process that is done keeps its core busy until all are."""
    started: dict[str, tuple[subprocess.Popen[bytes], IO[bytes], Path]] = {}
    with tempfile.TemporaryDirectory(prefix="areal-calibration-") as folder:
        try:
            for kind, measurement in wanted.items():
                result = Path(folder, kind)
                output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it is read after the process
                command = module_command(
                    "areal_actors.calibration.measure", kind, str(result), msgspec.json.encode(measurement).decode()
                )
                environment = {**os.environ, "OMP_NUM_THREADS": str(measurement.threads)}
                process = subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
                started[kind] = process, output, result
            _wait(started)
            return {kind: result.read_bytes() for kind, (_, _, result) in started.items()}
        finally:
            for process, output, _ in started.values():
                process.kill()
                process.wait()
                output.close()


def _wait(started: Mapping[str, tuple[subprocess.Popen[bytes], IO[bytes], Path]]) -> None:
    """Wait until every process has written its result."""
    until = time.monotonic() + DEADLINE_SECONDS
    while missing := [kind for kind, (_, _, result) in started.items() if not result.exists()]:
        for kind in missing:
            process, output, result = started[kind]
            if process.poll() is not None and not result.exists():
                raise SetupError(f"the measurement of {kind} on this machine failed: {_end_of(output)}")
        if time.monotonic() > until:
            raise SetupError(f"the measurement of {missing[0]} on this machine took more than {DEADLINE_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def _end_of(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
