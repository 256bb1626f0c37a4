"""Validation of training rows: invalid rows are left out of the step and reported, the others are trained.

The decision depends only on the batch, its trajectories in the log and the limits of the model, so a step replayed after a restart
leaves out the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from areal_actors.core.column_check import ColumnFault, number_fault, trajectory_fault
from areal_actors.core.values import Row, Trajectory
from areal_actors.messages import BatchFormed, RefusedRow
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.rows import rows_of
from areal_actors.sequences.step_metrics import mean_metrics
from bus.message import FrozenMeta


class RowLimits(msgspec.Struct, metaclass=FrozenMeta):
    """Limits of the trained model; 0 if its configuration has none."""

    vocabulary: int = 0
    """Number of token ids."""
    context: int = 0
    """Longest sequence, in tokens."""


class BatchRows(msgspec.Struct, metaclass=FrozenMeta):
    """Valid rows of a batch, and the refused ones."""

    rows: Sequence[Row]
    refused: tuple[RefusedRow, ...] = ()
    reward_metrics: Mapping[str, float] = {}
    """Means of the further numbers from the reward function, over the trajectories that have them."""


def batch_rows(batch: BatchFormed, trajectories: Iterable[tuple[int, Trajectory]], credit: Credit, limits: RowLimits) -> BatchRows:
    """Returns the rows of trajectories, given with the index of their group; invalid ones are listed in `refused`."""
    rows: list[Row] = []
    refused: list[RefusedRow] = []
    metrics: list[Mapping[str, float]] = []
    index = 0
    for group, trajectory in trajectories:
        if (fault := trajectory_fault(trajectory)) is not None:
            refused.append(RefusedRow(episode=trajectory.episode, cause=str(fault)))
            continue
        metrics.append(trajectory.metrics)
        for row in rows_of(trajectory, group, batch.oldest_version, credit):
            if (fault := row_fault(row, limits, batch.step)) is None:
                rows.append(row)
            else:
                refused.append(RefusedRow(episode=trajectory.episode, row=index, token=fault.position, cause=str(fault)))
            index += 1
    return BatchRows(rows=rows, refused=tuple(refused), reward_metrics=mean_metrics(metrics))


def row_fault(row: Row, limits: RowLimits, weight_version: int) -> ColumnFault | None:
    """Returns the reason why a row cannot be trained on weights of this version; None if it can."""
    if limits.context and len(row.token_ids) > limits.context:
        return ColumnFault(check="context", detail=f"{len(row.token_ids)} tokens; the model's context has {limits.context}")
    if (fault := number_fault(row.token_ids, row.logprobs, limits.vocabulary)) is not None:
        return fault
    if int(row.versions.max()) > weight_version:
        place = int(row.versions.argmax())
        found = f"weight version {int(row.versions[place])}; the trainer's weights are of version {weight_version}"
        return ColumnFault(check="weight version", detail=found, position=place)
    return None
