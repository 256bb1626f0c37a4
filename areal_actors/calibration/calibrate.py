"""Runs the measurements of this machine in processes of their own, and returns their results. Does not import torch.

Generation and training are measured at the same time where a run does both at the same time: on most machines cores share the
bandwidth of the memory. Each is measured alone as well, because in a run the faster of them waits for the other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.module_command import module_command
from areal_actors.core.values import Value

DEADLINE_SECONDS = 60.0
"""Maximum duration of all measurements; on an idle machine they take about 15 s, half of it to import torch."""
POLL_SECONDS = 0.05
HOLD, MEASURE_ALONE = signal.SIGUSR2, signal.SIGUSR1
"""Signals to a measuring process that has a result: to wait, and to measure once more."""


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
    decode_alone: DecodeCalibration | None = None
    """Generation while nothing is trained; None where `decode` is that."""
    train_alone: TrainCalibration | None = None
    """Training while nothing is generated; None where `train` is that."""


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
    wanted = {kind: measurement for kind, measurement in (("decode", decode), ("train", train)) if measurement is not None}
    batches = [wanted] if together else [{kind: measurement} for kind, measurement in wanted.items()]
    results = {name: result for batch in batches for name, result in _measure(batch).items()}
    decoded = {name: msgspec.json.decode(results[name], type=DecodeCalibration) for name in ("decode", "decode.alone") if name in results}
    trained = {name: msgspec.json.decode(results[name], type=TrainCalibration) for name in ("train", "train.alone") if name in results}
    return Calibration(
        decode=decoded.get("decode"),
        train=trained.get("train"),
        decode_alone=decoded.get("decode.alone"),
        train_alone=trained.get("train.alone"),
    )


class _Process(NamedTuple):
    """A measuring process."""

    kind: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    folder: Path


def _measure(wanted: Mapping[str, Measurement]) -> dict[str, bytes]:
    """Run one process for each, all at the same time and then one after the other; returns results by `kind` and `kind.alone`."""
    until = time.monotonic() + DEADLINE_SECONDS
    started = list[_Process]()
    with tempfile.TemporaryDirectory(prefix="areal-calibration-") as folder:
        try:
            started += [_start(kind, measurement, Path(folder)) for kind, measurement in wanted.items()]
            results = {measuring.kind: _result(measuring, measuring.kind, until) for measuring in started}
            if len(started) > 1:
                results |= _measure_alone(started, until)
            return results
        finally:
            for measuring in started:
                measuring.process.kill()
                measuring.process.wait()
                measuring.output.close()


def _measure_alone(started: Sequence[_Process], until: float) -> dict[str, bytes]:
    """Let one process after the other measure while the others wait; on a busy machine those that are late are left out."""
    results = {}
    for measuring in started[1:]:
        measuring.process.send_signal(HOLD)
    with suppress(SetupError):
        for measuring in started:
            measuring.process.send_signal(MEASURE_ALONE)
            name = f"{measuring.kind}.alone"
            results[name] = _result(measuring, name, until)
    return results


def _start(kind: str, measurement: Measurement, folder: Path) -> _Process:
    output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it is read after the process
    command = module_command("areal_actors.calibration.measure", kind, str(folder), msgspec.json.encode(measurement).decode())
    environment = {**os.environ, "OMP_NUM_THREADS": str(measurement.threads)}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    return _Process(kind, process, output, folder)


def _result(measuring: _Process, name: str, until: float) -> bytes:
    """Wait for the file of a result; returns its content."""
    file = measuring.folder / name
    while not file.exists():
        if measuring.process.poll() is not None and not file.exists():
            raise SetupError(f"the measurement of {measuring.kind} on this machine failed: {_end_of(measuring.output)}")
        if time.monotonic() > until:
            raise SetupError(f"the measurement of {measuring.kind} on this machine took more than {DEADLINE_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
    return file.read_bytes()


def _end_of(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
