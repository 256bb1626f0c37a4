"""Trajectories as AReaL's tensor dicts: a row for each training sequence, padded on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from areal_actors.core.values import TrainingSequence

TensorBatch = dict[str, Tensor]
"""`input_ids`, `attention_mask`, `loss_mask`, `logprobs`, `versions` [rows, tokens], and `rewards` [rows]."""


def tensors_of(sequences: Sequence[TrainingSequence]) -> TensorBatch:
    """Returns the rows of at least one sequence: ids int64, masks bool and int32, logprobs float32, versions int32."""
    rewards = torch.tensor([sequence.reward for sequence in sequences], dtype=torch.float32)
    ones = [torch.ones(len(sequence.token_ids), dtype=torch.bool) for sequence in sequences]
    return {
        "input_ids": _pad([sequence.token_ids for sequence in sequences]),
        "attention_mask": pad_sequence(ones, batch_first=True),
        "loss_mask": _pad([sequence.loss_mask for sequence in sequences]).to(torch.int32),
        "logprobs": _pad([sequence.logprobs for sequence in sequences]),
        "versions": _pad([sequence.versions for sequence in sequences], padding=-1),
        "rewards": rewards,
    }


def _pad(columns: Sequence[Any], padding: int = 0) -> Tensor:
    return pad_sequence([torch.tensor(column) for column in columns], batch_first=True, padding_value=padding)
