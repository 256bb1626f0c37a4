"""Common functions of the sections.

The device, timing, random tokens, completions of an engine, rows for the trainer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from options import Dtype, Options, Sharing
from safetensors import safe_open

from areal_actors.core.values import SamplingParams, TokenColumns, TrainingSequence
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.training.algorithms import Grpo
from areal_actors.training.settings import OptimizerSettings, TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer
from areal_actors.weights.torch_device import torch_device

FIRST_ID = 3
"""Ids below it are special tokens."""
LEARNING_RATE = 1e-6

T = TypeVar("T")


def device_of(options: Options) -> torch.device:
    """Return the device of `--device`.

    Raises:
        SetupError: there is none.
    """
    return torch_device(options.device, "--device")


def synchronize(device: torch.device) -> None:
    """Wait for the work queued on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(device: torch.device, work: Callable[[], object]) -> float:
    """Return the seconds of some work, with all that it queued on the device."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def count_parameters(folder: str) -> int:
    """Return the number of parameters in a folder of weights."""
    total = 0
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(str(file), "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                total += int(np.prod(tensors.get_slice(name).get_shape()))
    return total


def random_prompts(options: Options, count: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """Return prompts of random tokens."""
    draw = np.random.default_rng([seed, tokens])
    prompts: list[list[int]] = draw.integers(FIRST_ID, options.sizes.model["vocab_size"], (count, tokens)).tolist()
    return prompts


def make_engine(options: Options, dtype: Dtype, sequences: int, tokens: int) -> TransformersEngine:
    """Return the embedded engine with room for a number of sequences of a number of tokens each."""
    settings = GenerationSettings(device=options.device, dtype=dtype, max_num_seqs=sequences, max_model_len=tokens)
    return TransformersEngine(options.model, settings)


def with_engine(engine: TransformersEngine, work: Callable[[TransformersEngine], Awaitable[T]]) -> T:
    """Return the result of a coroutine on an engine, which is closed after it."""

    async def run() -> T:
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


async def complete(engine: TransformersEngine, prompts: Sequence[Sequence[int]], tokens: int) -> list[TokenColumns]:
    """Return a completion of at most `tokens` tokens for each prompt, all requested at once."""

    async def one(number: int, prompt: Sequence[int]) -> TokenColumns:
        columns = TokenColumns()
        async for chunk in engine.generate(f"completion-{number}", prompt, SamplingParams(max_tokens=tokens)):
            columns = columns.append(chunk.columns)
        return columns

    return await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))


def make_trainer(
    options: Options,
    dtype: Dtype,
    sharing: Sharing = "off",
    microbatch: int = 0,
    steps: int = 1,
    *,
    compiles: bool = False,
) -> TorchTrainer:
    """Return a trainer of the model with GRPO and AdamW; `microbatch` is in computed tokens."""
    settings = TrainerSettings(
        device=options.device,
        dtype=dtype,
        prefix_sharing=sharing,
        microbatch_tokens=microbatch or options.sizes.microbatches[-1],
        logprob_check_sequences=0,
        compile=compiles,
        optimizer=OptimizerSettings(lr=LEARNING_RATE),
    )
    return TorchTrainer(options.model, Grpo(), settings, total_steps=steps)


def training_sequence(
    prompt: Sequence[int],
    completion: Sequence[int] | NDArray[np.uint32],
    logprobs: NDArray[np.float32],
    group: int,
    reward: float,
) -> TrainingSequence:
    """Return a row of a prompt and a completion that weight version 0 sampled."""
    sampled = np.arange(len(prompt) + len(completion)) >= len(prompt)
    return TrainingSequence(
        token_ids=np.array([*prompt, *completion], dtype=np.int64),
        loss_mask=sampled,
        logprobs=np.concatenate([np.zeros(len(prompt), dtype=np.float32), logprobs]),
        versions=np.where(sampled, 0, -1).astype(np.int32),
        group=group,
        reward=reward,
        truncated=False,
    )
