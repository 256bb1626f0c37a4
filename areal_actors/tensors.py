"""From rows to tensors: micro-batches of padded sequences, and which of their positions score a token.

Logits at position t score token t + 1. Only positions that score a token of interest are listed, so nothing is ever
computed for prompts or padding, the first token of a row (which nothing scores) is never of interest, and positions
after the last one of interest are not even fed to the model. Padding stands on the right, where a causal model never
looks, so no attention mask is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.values import Row

Chosen = Callable[[Row], NDArray[np.bool_]]
"""Which tokens of a row are of interest: bool `[n]`."""


class MicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of a step, padded to one width; columns per token of interest, row after row."""

    token_ids: Tensor
    """int64 `[rows, width]`, padded with 0 on the right."""
    positions: Tensor
    """int64 `[tokens]`: where in the flattened `token_ids` the logits stand that score the token."""
    labels: Tensor
    """int64 `[tokens]`: the token itself."""
    rows: Tensor
    """int64 `[tokens]`: index of the token's row within the step."""
    behaviour: Tensor
    """float32 `[tokens]`: log-probability under the weights that sampled it."""
    versions: Tensor
    """int64 `[tokens]`: the version of those weights."""


def trained(row: Row) -> NDArray[np.bool_]:
    """The tokens that the loss sees."""
    return row.loss_mask


def arrange(rows: Sequence[Row], indices: Sequence[int], budget: int, device: torch.device, chosen: Chosen = trained) -> list[MicroBatch]:
    """Cut rows into micro-batches, longest first, each of at most `budget` padded tokens.

    Sorting keeps rows of like length together, so that little padding is computed. Rows without a token of interest
    are left out. A row longer than the budget has a micro-batch to itself.

    Args:
        rows: all rows of the step.
        indices: which of them.
        budget: padded tokens per micro-batch.
        device: where the tensors go.
        chosen: which tokens are of interest.
    """
    scored = {index: np.flatnonzero(chosen(rows[index])[1:]) for index in indices}
    widths = {index: int(positions[-1]) + 1 for index, positions in scored.items() if len(positions)}
    parts: list[list[int]] = []
    for index in sorted(widths, key=lambda index: (-widths[index], index)):
        if parts and (len(parts[-1]) + 1) * widths[parts[-1][0]] <= budget:
            parts[-1].append(index)
        else:
            parts.append([index])
    return [_pad(rows, part, scored, widths[part[0]], device) for part in parts]


def _pad(rows: Sequence[Row], part: Sequence[int], scored: dict[int, NDArray[np.intp]], width: int, device: torch.device) -> MicroBatch:
    """One micro-batch of these rows."""
    token_ids = np.zeros((len(part), width), dtype=np.int64)
    for place, index in enumerate(part):
        kept = min(width, len(rows[index].token_ids))
        token_ids[place, :kept] = rows[index].token_ids[:kept]

    def column(of: Callable[[int, NDArray[np.intp]], NDArray[np.generic]]) -> Tensor:
        return torch.from_numpy(np.concatenate([of(place, scored[index]) for place, index in enumerate(part)])).to(device)

    return MicroBatch(
        token_ids=torch.from_numpy(token_ids).to(device),
        positions=column(lambda place, at: at + place * width),
        labels=column(lambda place, at: rows[part[place]].token_ids[at + 1]),
        rows=column(lambda place, at: np.full(len(at), part[place], dtype=np.int64)),
        behaviour=column(lambda place, at: rows[part[place]].logprobs[at + 1]),
        versions=column(lambda place, at: rows[part[place]].versions[at + 1].astype(np.int64)),
    )
