"""Section `trainer`: optimizer steps with and without prefix sharing, and compiled.

The sequences are in groups with one prompt. The first step of a compiled trainer has most of its compilation; without a
compiler it is left out.

`mfu` is 6 N tokens / seconds / peak for N parameters and the tokens of all rows; `mfu_computed` counts a shared prompt
once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from measuring import (
    FIRST_ID,
    count_parameters,
    device_of,
    make_trainer,
    random_prompts,
    synchronize,
    training_sequence,
)
from options import GROUP, Options, Sharing
from report import Figures, Report
from torch import Tensor

from areal_actors.core.values import TrainingSequence
from areal_actors.training.recipe_check import trainer_problems
from areal_actors.training.settings import TrainerSettings

PEAK_TFLOPS = {"H200": 989.0, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0}
"""Dense bfloat16 peak by a part of the device's name, from the data sheets of the manufacturer; the first match
counts."""
COMPILED = "compile=true"
FLOPS_PER_PARAMETER = 6
"""Floating-point operations per parameter and token of a forward and a backward pass."""


def measure(report: Report, options: Options) -> None:
    """Measure a step with `trainer.prefix_sharing` off and on, and with it off and `trainer.compile`."""
    found: dict[str, Tensor] = {}
    rows = random_rows(options)
    kinds: list[tuple[str, Sharing]] = [("prefix_sharing=off", "off"), ("prefix_sharing=on", "on")]
    if not any(trainer_problems(TrainerSettings(device=options.device, compile=True))):
        kinds.append((COMPILED, "off"))
    for kind, sharing in kinds:
        for microbatch in options.sizes.microbatches:
            if report.case(kind, partial(steps, options, rows, kind, sharing, microbatch, found)):
                break
        if kind in found and kind != kinds[0][0] and kinds[0][0] in found:
            report.case(f"{kind} - {kinds[0][0]}", partial(difference, found[kind], found[kinds[0][0]]))


def steps(
    options: Options,
    rows: list[TrainingSequence],
    kind: str,
    sharing: Sharing,
    microbatch: int,
    found: dict[str, Tensor],
) -> Iterator[Figures]:
    """Yield each step, the first of which warms up, and keep the log-probabilities before them in `found`."""
    device = device_of(options)
    trainer = make_trainer(
        options, options.sizes.dtype, sharing, microbatch, steps=options.sizes.steps, compiles=kind == COMPILED
    )
    found[kind] = trainer.logp(rows)
    tokens = sum(len(row.token_ids) for row in rows)
    parameters, peak = count_parameters(options.model), peak_tflops(device)
    for number in range(1, options.sizes.steps + 1):
        synchronize(device)
        began = time.perf_counter()
        metrics = trainer.step(rows)
        synchronize(device)
        seconds = time.perf_counter() - began
        computed = int(metrics["computed_tokens"])
        tflops = FLOPS_PER_PARAMETER * parameters * tokens / seconds / 1e12
        utilisation = {"mfu": tflops / peak, "mfu_computed": tflops / peak * computed / tokens} if peak else {}
        yield {
            "microbatch": microbatch,
            "step": number,
            "tokens": tokens,
            "computed_tokens": computed,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "tflops": tflops,
            **utilisation,
        }


def difference(ours: Tensor, plain: Tensor) -> list[Figures]:
    """Return the absolute differences of log-probabilities, in nats."""
    distance = (ours - plain).abs()
    return [
        {"tokens": len(distance), "max_difference": float(distance.max()), "mean_difference": float(distance.mean())}
    ]


def random_rows(options: Options) -> list[TrainingSequence]:
    """Return groups of random rows, with random rewards and the log-probabilities of a uniform distribution."""
    sizes = options.sizes
    draw = np.random.default_rng(1)
    size = sizes.model["vocab_size"]
    logprobs = np.full(sizes.step_completion, -np.log(size), dtype=np.float32)
    return [
        training_sequence(
            prompt,
            draw.integers(FIRST_ID, size, sizes.step_completion).tolist(),
            logprobs,
            group,
            float(draw.integers(0, 2)),
        )
        for group, prompt in enumerate(random_prompts(options, sizes.step_groups, sizes.step_prompt))
        for _ in range(GROUP)
    ]


def peak_tflops(device: torch.device) -> float:
    """Return the dense bfloat16 peak of a device in TFLOP/s; 0 if it is not listed."""
    if device.type != "cuda":
        return 0.0
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), 0.0)
