"""Datums of a forward pass: their check against model and loss, and padded micro-batches that score every target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from areal_actors.core.errors import RequestError
from areal_actors.sequences.sequence_check import SequenceLimits
from areal_actors.tinker.datums import Datum
from areal_actors.training.packing.tensors import MicroBatch

MICROBATCH_TOKENS = 8192
"""Padded positions, each counted once for every target, per forward and backward pass."""
TARGETS = "target_tokens"


def check_datum(datum: Datum, number: int, needed: frozenset[str], limits: SequenceLimits) -> None:
    """Check that a datum fits the model and has the inputs of the loss.

    Raises:
        RequestError: names the datum, the field and the remedy.
    """
    where = f"datum {number}"
    tokens = len(datum.token_ids)
    if not tokens:
        raise RequestError(f"{where}: model_input is empty; send at least one token", "model_input")
    if limits.context and tokens > limits.context:
        raise RequestError(
            f"{where}: model_input has {tokens} tokens, and the model's context is {limits.context}", "model_input"
        )
    for name in sorted(needed | {TARGETS}):
        if name not in datum.inputs:
            names = ", ".join(sorted(datum.inputs)) or "nothing"
            raise RequestError(f"{where}: loss_fn_inputs lacks {name}; it holds {names}", name)
    _check_tensors(datum, where, limits)


def _check_tensors(datum: Datum, where: str, limits: SequenceLimits) -> None:
    """Check the shapes and values of the inputs; raises like `check_datum`."""
    tokens = len(datum.token_ids)
    targets = datum.inputs[TARGETS]
    if targets.ndim not in (1, 2) or len(targets) != tokens or not targets.size:
        raise RequestError(
            f"{where}: {TARGETS} has shape {list(targets.shape)}, expected [{tokens}] or [{tokens}, k]", TARGETS
        )
    for name, values in datum.inputs.items():
        if values.shape != targets.shape:
            raise RequestError(
                f"{where}: {name} has shape {list(values.shape)}, and {TARGETS} {list(targets.shape)}", name
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise RequestError(f"{where}: {name} holds a value that is not finite", name)
    for name, ids in (("model_input", datum.token_ids), (TARGETS, targets)):
        if int(ids.min()) < 0 or int(ids.max()) >= limits.vocabulary:
            raise RequestError(
                f"{where}: {name} holds a token outside of 0 to {limits.vocabulary - 1}: use the model's tokenizer",
                name,
            )


def micro_batches(data: Sequence[Datum]) -> Iterator[list[int]]:
    """Indices of the datums of each micro-batch, the longest first.

    Padded tokens times targets stay within the budget.
    """
    part: list[int] = []
    longest = 0
    for index in sorted(range(len(data)), key=lambda index: -len(data[index].token_ids)):
        size = data[index].inputs[TARGETS].size
        if part and max(longest, size) * (len(part) + 1) > MICROBATCH_TOKENS:
            yield part
            part, longest = [], 0
        part.append(index)
        longest = max(longest, size)
    if part:
        yield part


def make_batch(data: Sequence[Datum], device: torch.device) -> tuple[MicroBatch, list[int]]:
    """A padded micro-batch that scores every target of these datums, the longest first.

    Returns the number of targets of each, too.
    """
    width = len(data[0].token_ids)
    token_ids = np.zeros((len(data), width), dtype=np.int64)
    for row, datum in enumerate(data):
        token_ids[row, : len(datum.token_ids)] = datum.token_ids
    targets = [datum.inputs[TARGETS] for datum in data]
    positions = [
        np.repeat(np.arange(len(target)), target.size // len(target)) + row * width
        for row, target in enumerate(targets)
    ]
    labels = np.concatenate([one.astype(np.int64).flatten() for one in targets])
    batch = MicroBatch(
        token_ids=torch.from_numpy(token_ids).to(device),
        positions=torch.from_numpy(np.concatenate(positions)).to(device),
        labels=torch.from_numpy(labels).to(device),
        token_index=torch.arange(len(labels), device=device),
        sequence_tokens=sum(len(datum.token_ids) for datum in data),
    )
    return batch, [one.size for one in targets]
