"""What a step trained, in numbers: staleness per token and per head, how much was masked, how long the answers were."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from areal_actors.messages import BatchFormed
from areal_actors.values import PROMPT_VERSION, Row


def batch_metrics(rows: Sequence[Row], batch: BatchFormed) -> dict[str, float]:
    """Staleness (in weight versions, at the version that trains them) of trained tokens and of each row's first sampled token.

    `length_bias` is the mean length of what has been trained over that of what has been generated and either trained or
    dropped; below 1, dropping favours short answers.
    """
    sampled = np.concatenate([row.versions[row.versions != PROMPT_VERSION] for row in rows])
    trained = np.concatenate([row.versions[row.loss_mask] for row in rows])
    heads = np.array([row.versions[row.versions != PROMPT_VERSION][0] for row in rows])
    lengths = np.array([np.count_nonzero(row.versions != PROMPT_VERSION) for row in rows])
    return {
        **_distribution("token_staleness", batch.step - trained),
        **_distribution("head_staleness", batch.step - heads),
        "masked_share": float(1.0 - len(trained) / max(len(sampled), 1)),
        "versions_in_batch": float(len(np.unique(trained))),
        "sampled_tokens": float(len(sampled)),
        "mean_tokens": float(lengths.mean()),
        "length_bias": _length_bias(batch),
        "dropped_tokens": float(batch.dropped_tokens),
        "filtered_groups": float(batch.filtered_groups),
        "truncated_share": float(np.mean([row.truncated for row in rows])),
        "reward_mean": float(np.mean([row.reward for row in rows])),
    }


def _length_bias(batch: BatchFormed) -> float:
    generated_tokens = batch.trained_tokens + batch.dropped_tokens
    generated_trajectories = batch.trained_trajectories + batch.dropped_trajectories
    return (batch.trained_tokens / batch.trained_trajectories) / (generated_tokens / generated_trajectories)


def _distribution(name: str, values: np.ndarray[tuple[int], np.dtype[np.int32]]) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_p99": float(np.percentile(values, 99)),
        f"{name}_max": float(values.max()),
    }


def rows_checksum(rows: Sequence[Row]) -> str:
    """CRC-32 of the sampled ids and log-probabilities, in row order: equal to that of what the engine sampled."""
    checksum = 0
    for row in rows:
        sampled = row.versions != PROMPT_VERSION
        checksum = zlib.crc32(row.token_ids[sampled].astype("<u4").tobytes(), checksum)
        checksum = zlib.crc32(row.logprobs[sampled].astype("<f4").tobytes(), checksum)
    return f"{checksum:08x}"
