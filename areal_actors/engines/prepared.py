"""What a step knows of its rows before it changes any weight: columns over all trained tokens, and what is told of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from areal_actors.algorithms.base import Advantages, Batch, StepTokens
from areal_actors.algorithms.groups import mean_by
from areal_actors.engines.ranks import Ranks
from areal_actors.engines.tensors import MicroBatch
from areal_actors.errors import EngineError, UntrainableBatch
from areal_actors.values import PROMPT_VERSION, Row

Columns = TypeVar("Columns", StepTokens, Advantages)


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A step before its first update: rows, what their tokens are worth, and which rows each update takes."""

    rows: Sequence[Row]
    """The tokens that the loss sees are those of their masks."""
    tokens: StepTokens
    """Of these tokens, on the CPU."""
    advantages: Advantages
    """Of these tokens, on the CPU; `kept` has been seen to."""
    minibatches: list[list[int]]
    """Indices of the rows of each update."""
    metrics: dict[str, float]


def step_tokens(rows: Sequence[Row], weight_version: int) -> StepTokens:
    """The columns of a step that cost no forward pass, on the CPU.

    Raises:
        UntrainableBatch: no row has a trained token.
        EngineError: a reward is not finite.
    """
    if not any(row.loss_mask[1:].any() for row in rows):
        raise UntrainableBatch("no row of the batch has a trained token: everything in it was masked, or nothing was sampled")
    rewards = torch.tensor([row.reward for row in rows], dtype=torch.float64)
    if not rewards.isfinite().all():
        bad = int((~rewards.isfinite()).nonzero()[0])
        raise EngineError(f"the reward of row {bad} (group {rows[bad].group}) is {rows[bad].reward}; rewards must be finite")
    masks = [row.loss_mask[1:] for row in rows]

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(row, name)[1:][mask] for row, mask in zip(rows, masks, strict=True)])

    return StepTokens(
        rows=torch.arange(len(rows)).repeat_interleave(torch.tensor([int(mask.sum()) for mask in masks])),
        groups=torch.tensor([row.group for row in rows], dtype=torch.int64),
        rewards=rewards,
        sampled=torch.tensor([int((row.versions != PROMPT_VERSION).sum()) for row in rows], dtype=torch.int64),
        truncated=torch.tensor([row.truncated for row in rows], dtype=torch.bool),
        behaviour=torch.from_numpy(column("logprobs").astype(np.float32)),
        versions=torch.from_numpy(column("versions").astype(np.int64)),
        weight_version=weight_version,
    )


def reward_metrics(tokens: StepTokens, advantages: Advantages) -> dict[str, float]:
    """What there is to say of rewards, and of advantages: over rows with trained tokens, each row's being its tokens' mean."""
    rewards, groups = tokens.rewards, tokens.groups
    trained = torch.unique(tokens.rows)
    worth = mean_by(advantages.tokens.double(), tokens.rows, len(groups))[trained]
    present, with_signal = torch.unique(groups), torch.unique(groups[tokens.rows[advantages.tokens != 0]])
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std(correction=0)),
        "advantage_mean": float(worth.mean()),
        "advantage_std": float(worth.std(correction=0)),
        "advantage_max": float(worth.max()),
        "advantage_min": float(worth.min()),
        "groups": float(len(present)),
        "groups_without_signal": float(len(present) - len(with_signal)),
        **advantages.metrics,
    }


def only_kept(rows: Sequence[Row], tokens: StepTokens, advantages: Advantages) -> tuple[list[Row], StepTokens, Advantages]:
    """The same step, as if the tokens that are not kept had never been trained ones.

    Raises:
        UntrainableBatch: none is kept.
    """
    kept = advantages.kept
    assert kept is not None
    if not kept.any():
        raise UntrainableBatch("the algorithm keeps no token of this batch: loosen what it masks, under [algorithm]")
    masked = []
    for row, own in zip(rows, torch.split(kept, [int(row.loss_mask[1:].sum()) for row in rows]), strict=True):
        mask = row.loss_mask.copy()
        mask[1:][mask[1:]] = own.numpy()
        masked.append(msgspec.structs.replace(row, loss_mask=mask))

    def of(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[kept]

    names = ("rows", "behaviour", "versions", "proximal", "reference", "values", "teacher")
    fewer = msgspec.structs.replace(tokens, **{name: of(getattr(tokens, name)) for name in names})
    worth = msgspec.structs.replace(advantages, tokens=advantages.tokens[kept], returns=of(advantages.returns), kept=None)
    return masked, fewer, worth


def moved(columns: Columns, device: torch.device) -> Columns:
    """The same columns on another device."""
    own = msgspec.structs.asdict(columns)
    return msgspec.structs.replace(columns, **{name: value.to(device) for name, value in own.items() if isinstance(value, Tensor)})


def seen_by_loss(batch: MicroBatch, tokens: StepTokens, advantages: Advantages, proximal: Tensor) -> Batch:
    """A micro-batch as the loss sees it; `tokens` and `advantages` are on its device."""

    def of(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[batch.place]

    return Batch(
        rows=batch.rows,
        groups=tokens.groups[batch.rows],
        rewards=tokens.rewards[batch.rows].float(),
        advantages=advantages.tokens[batch.place],
        behaviour=batch.behaviour,
        versions=batch.versions,
        weight_version=tokens.weight_version,
        proximal=proximal,
        reference=of(tokens.reference),
        teacher=of(tokens.teacher),
        values=of(tokens.values),
        returns=of(advantages.returns),
    )


class Tally:
    """Means, and maxima of what is named `…_max`, over the trained tokens of a step; and how many tokens there were."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._counts = dict.fromkeys(("trained_tokens", "row_tokens", "computed_tokens"), 0.0)

    def add(self, batch: MicroBatch, columns: dict[str, Tensor]) -> None:
        """Count columns `[tokens]` of a micro-batch that has tokens."""
        for name, column in columns.items():
            if name.endswith("_max"):
                self._largest[name] = max(self._largest.get(name, -math.inf), float(column.max()))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + float(column.sum(dtype=torch.float64))
        self._counts["trained_tokens"] += len(batch.rows)
        self._counts["row_tokens"] += batch.row_tokens
        self._counts["computed_tokens"] += batch.computed_tokens

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """All of it by name; `row_tokens` would be computed if rows shared no beginning, `computed_tokens` were."""
        counts, means = self._merged(ranks)
        return counts | means

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Means and maxima by name."""
        return self._merged(ranks)[1]

    def _merged(self, ranks: Ranks) -> tuple[dict[str, float], dict[str, float]]:
        sums, largest = ranks.merge({**self._sums, **self._counts}, self._largest)
        counts = {name: sums.pop(name) for name in self._counts}
        return counts, {name: total / counts["trained_tokens"] for name, total in sums.items()} | largest
