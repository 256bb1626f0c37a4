"""Measures generation or training on this machine with a model of random weights.

Call it as `main(["decode" | "train", RESULT, MEASUREMENT])`. The model has the shape of the real one, with as many of
its layers as are needed to exceed the caches, and the engine's and the trainer's own code runs on it. Times of all
layers follow from those of two models with different numbers of layers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from areal_actors.calibration.calibrate import DecodeCalibration, Measurement, TrainCalibration
from areal_actors.core.machine import anonymous_bytes
from areal_actors.core.values import PROMPT_VERSION, SamplingParams, TrainingSequence
from areal_actors.embedded.decoders import ModelDecoder, SlotDecoder
from areal_actors.embedded.fused_decoder import FusedDecoder
from areal_actors.embedded.sampling import Sampler
from areal_actors.training.optimization import make_optimizer
from areal_actors.training.packing.scoring import TokenScorer, set_up
from areal_actors.training.packing.tensors import MicroBatch, make_micro_batches
from areal_actors.training.settings import OptimizerSettings

DECODE_BYTES = 400 * 2**20
"""Size of the layers from which decoding reads memory rather than caches."""
SEQUENCES = (1, 8, 32, 128)
PREFILL_TOKENS = 64
TRAIN_LAYERS = 4
SECONDS = 0.3
"""Minimum duration of the repetitions of one measurement."""
MAX_TOKENS = 512


def main(arguments: list[str]) -> None:
    """Measure, write the result to a file that appears when it is complete, and repeat until this process is killed."""
    caller = os.getppid()
    kind, result, text = arguments
    measurement = msgspec.json.decode(text, type=Measurement)
    torch.set_num_threads(measurement.threads)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    base = anonymous_bytes(os.getpid())
    measured = measure_decode(measurement, base) if kind == "decode" else measure_training(measurement, base)
    partial = Path(f"{result}.partial")
    partial.write_bytes(msgspec.json.encode(measured))
    partial.rename(result)
    while (
        os.getppid() == caller
    ):  # keeps its core busy for the other measurement, until the caller kills it or has died
        measure_decode(measurement, base) if kind == "decode" else measure_training(measurement, base)


def make_model(folder: str, layers: int, dtype: torch.dtype) -> Any:
    """Model of this shape with `layers` layers, its weights small and constant."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(text, dtype=dtype)  # type: ignore[no-untyped-call]
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
        for name, buffer in model.named_buffers():
            buffer.copy_(torch.ones_like(buffer) if "inv_freq" in name else torch.zeros_like(buffer))
    return model.eval()


def layer_count(folder: str) -> int:
    """Number of layers of the model."""
    count: int = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config().num_hidden_layers
    return count


def seconds_of(call: Callable[[], object], least: float = SECONDS) -> float:
    """Median duration of a call, after one that is not counted."""
    call()
    durations = list[float]()
    until = time.perf_counter() + least
    while not durations or (time.perf_counter() < until and len(durations) < 64):
        began = time.perf_counter()
        call()
        durations.append(time.perf_counter() - began)
    return float(np.median(durations))


# ---------------------------------------------------------------- generation


@torch.inference_mode()
def measure_decode(measurement: Measurement, base_bytes: int) -> DecodeCalibration:
    """Measure decode steps and prefill with the engine's decoder, and sampling."""
    dtype = getattr(torch, measurement.dtype)
    total = layer_count(measurement.config)
    layer_model = make_model(measurement.config, 1, dtype)
    layer_bytes = sum(parameter.nbytes for parameter in layer_model.base_model.layers.parameters())
    layers = min(total, max(3, -(-DECODE_BYTES // layer_bytes)))
    sequences = [count for count in SEQUENCES if count <= measurement.most_sequences] or [1]
    small, small_prefill = _decode_seconds(layer_model, measurement, sequences)
    large, large_prefill = _decode_seconds(make_model(measurement.config, layers, dtype), measurement, sequences)

    def whole(small: float, large: float) -> float:
        return small + max(large - small, 0.0) / (layers - 1) * (total - 1) if layers > 1 else small

    return DecodeCalibration(
        step_seconds={count: whole(small[count], large[count]) for count in sequences},
        prefill_seconds=whole(small_prefill, large_prefill) / PREFILL_TOKENS,
        base_bytes=base_bytes,
    )


def _decode_seconds(model: Any, measurement: Measurement, sequences: list[int]) -> tuple[dict[int, float], float]:
    """Seconds of a decode step in mid-context, by number of sequences, and of the prefill of one prompt."""
    kind = FusedDecoder if FusedDecoder.fits(model) else ModelDecoder
    decoder: SlotDecoder = kind(model, max(sequences), measurement.context, batch_invariant=measurement.batch_invariant)
    vocabulary = int(model.config.vocab_size)
    tokens = min(PREFILL_TOKENS, measurement.context - 1)
    prompt = (np.arange(tokens, dtype=np.int64) % vocabulary)[None]
    prefill = seconds_of(lambda: decoder.prefill([0], prompt)) * PREFILL_TOKENS / tokens
    seconds = {}
    for count in sequences:
        sampler = Sampler([SamplingParams()] * count, model.device, [None] * count)
        last, uniforms = np.zeros(count, dtype=np.int64), np.full(count, 0.5, dtype=np.float32)
        positions = np.full(count, measurement.context // 2, dtype=np.int64)
        seconds[count] = seconds_of(partial(_decode_step, decoder, sampler, last, positions, uniforms))
    return seconds, prefill


def _decode_step(
    decoder: SlotDecoder,
    sampler: Sampler,
    last: NDArray[np.int64],
    positions: NDArray[np.int64],
    uniforms: NDArray[np.float32],
) -> None:
    sampler.sample(decoder.decode(last, positions), uniforms)


# ---------------------------------------------------------------- training


def measure_training(measurement: Measurement, base_bytes: int) -> TrainCalibration:
    """Measure the passes of the trainer's packed micro-batches, the head and the optimizer."""
    total = layer_count(measurement.config)
    layers = min(total, TRAIN_LAYERS)
    single, stacked = (TokenScorer(make_model(measurement.config, count, torch.float32), 1.0) for count in (1, layers))
    tokens = min(measurement.microbatch_tokens, MAX_TOKENS)
    batch, head_batch = micro_batch(single, tokens, 1), micro_batch(single, tokens, tokens - 1)
    slope = (total - 1) / max(layers - 1, 1)

    def whole(call: Callable[[TokenScorer], object]) -> float:
        small, large = seconds_of(lambda: call(single)), seconds_of(lambda: call(stacked))
        return small + max(large - small, 0.0) * slope

    dtype = getattr(torch, measurement.dtype)
    for scorer in (single, stacked):
        scorer.dtype = dtype
    forward = whole(lambda scorer: _forward(scorer, batch))
    train = whole(lambda scorer: _train(scorer, batch))
    few, many = (seconds_of(partial(_train, single, scored)) for scored in (batch, head_batch))
    layer = sum(parameter.numel() for parameter in stacked.model.base_model.layers[0].parameters())
    parameters = sum(parameter.numel() for parameter in single.model.parameters()) + layer * (total - 1)
    settings = msgspec.convert({"name": measurement.optimizer, "lr": 1e-9}, OptimizerSettings)
    optimizer = make_optimizer(list(stacked.model.parameters()), settings)
    _train(stacked, batch)
    update = (
        seconds_of(optimizer.step) / sum(parameter.numel() for parameter in stacked.model.parameters()) * parameters
    )
    return TrainCalibration(
        forward_seconds=forward / tokens,
        train_seconds=train / tokens,
        head_seconds=max(many - few, 0.0) / (tokens - 2),
        update_seconds=update,
        token_bytes=_activation_bytes(stacked, batch) / tokens / layers * total,
        base_bytes=base_bytes,
    )


def micro_batch(scorer: TokenScorer, tokens: int, trained: int) -> MicroBatch:
    """A packed micro-batch of one sequence of `tokens` tokens, the last `trained` of them scored."""
    mask = np.arange(tokens) >= tokens - trained
    sequence = TrainingSequence(
        token_ids=np.arange(tokens, dtype=np.int64) % int(scorer.model.config.vocab_size),
        loss_mask=mask,
        logprobs=np.zeros(tokens, dtype=np.float32),
        versions=np.where(mask, 0, PROMPT_VERSION).astype(np.int32),
        group=0,
        reward=0.0,
        truncated=False,
    )
    sharing = set_up([scorer], "auto", compiles=False)
    (batch,) = make_micro_batches([sequence], [0], tokens, torch.device("cpu"), sharing=sharing)
    return batch


@torch.no_grad()
def _forward(scorer: TokenScorer, batch: MicroBatch) -> None:
    scorer(batch)


def _train(scorer: TokenScorer, batch: MicroBatch) -> None:
    scorer(batch)[0].sum().backward()


def _activation_bytes(scorer: TokenScorer, batch: MicroBatch) -> int:
    """Bytes of the tensors that a forward pass keeps for the backward pass, without parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in scorer.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scorer(batch)[0].sum()
    return sum(kept.values())
