"""Distribution of micro-batches over replicas: the same number for each, of similar size at the same time."""

from __future__ import annotations

import math

import msgspec

from areal_actors.training.packing.tensors import MicroBatch

ROOM = 1.1
"""Micro-batches may exceed an even split by this factor: rows are not split, and a small excess would cost another
round."""
ROUNDS_PER_STAGE = 4
"""Minimum for a small pipeline bubble (Huang et al. 2019, GPipe, https://arxiv.org/abs/1811.06965, section 2.3)."""
COLUMNS = ("positions", "labels", "token_index", "temperatures")
"""Columns of a micro-batch with one entry per selected token."""


def budget(tokens: int, most: int, replicas: int, stages: int = 1) -> int:
    """Token budget of a micro-batch, at most `most`, that minimizes the rounds of an even split over replicas.

    Stages idle in `stages - 1` rounds of each pass, so there should be several times as many rounds.
    """
    rounds = math.ceil(tokens / (replicas * most))
    least = 1 if stages == 1 else ROUNDS_PER_STAGE * stages
    return min(most, math.ceil(ROOM * tokens / (replicas * max(least, rounds))))


def distribute(sizes: list[int], replicas: int) -> list[list[int | None]]:
    """Indices of micro-batches for each replica, lists of equal length; None stands for a filler.

    Replicas wait for each other in every block, so micro-batches of the same round should have similar size: from the
    largest down, each round takes one per replica, and the replica with the fewest tokens so far gets the largest.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    shares: list[list[int | None]] = [[] for _ in range(replicas)]
    totals = [0] * replicas
    for start in range(0, len(order), replicas):
        drawn = order[start : start + replicas]
        for replica in sorted(range(replicas), key=lambda replica: (totals[replica], replica)):
            taken = drawn.pop(0) if drawn else None
            shares[replica].append(taken)
            totals[replica] += 0 if taken is None else sizes[taken]
    return shares


def filler(like: MicroBatch) -> MicroBatch:
    """Makes a micro-batch of one token and none selected, for a replica that would otherwise block the others."""
    return without_scores(
        msgspec.structs.replace(like, token_ids=like.token_ids[:1, :1], sequence_tokens=0, branches=None, routes=None)
    )


def without_scores(batch: MicroBatch) -> MicroBatch:
    """Returns the micro-batch with no selected token, for a stage without the head."""
    columns = {name: getattr(batch, name) for name in COLUMNS}
    return msgspec.structs.replace(
        batch, **{name: column[:0] for name, column in columns.items() if column is not None}
    )
