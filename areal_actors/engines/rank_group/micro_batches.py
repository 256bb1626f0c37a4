"""Who takes which micro-batches: as many for every replica, of like size at the same time."""

from __future__ import annotations

import math

import msgspec

from areal_actors.engines.tensors import MicroBatch

ROOM = 1.1
"""Micro-batches may be larger than an even split by this factor: rows are whole, and a little too much makes one more round."""
ROUNDS_PER_STAGE = 4
"""From so many micro-batches on stages hardly idle (Huang et al. 2019, GPipe, https://arxiv.org/abs/1811.06965, section 2.3)."""
COLUMNS = ("positions", "labels", "rows", "token_index", "behaviour", "versions")
"""Of a micro-batch, per token of interest."""


def budget(tokens: int, most: int, replicas: int, stages: int = 1) -> int:
    """Tokens of a micro-batch, at most `most`, so that an even split over replicas takes no more rounds than it must.

    Stages idle in `stages - 1` rounds of each pass, so there are to be several times as many rounds.
    """
    rounds = math.ceil(tokens / (replicas * most))
    least = 1 if stages == 1 else ROUNDS_PER_STAGE * stages
    return min(most, math.ceil(ROOM * tokens / (replicas * max(least, rounds))))


def distribute(sizes: list[int], replicas: int) -> list[list[int | None]]:
    """Indices of micro-batches for each replica, all lists of one length; None where nothing is left for it.

    Replicas wait for each other in every block, so what counts is who computes at the same time: from the largest on, each
    round takes one micro-batch for each replica, and the replica that has computed least so far has the first choice.
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
    """A micro-batch of one token and none of interest, for a replica that would otherwise leave the others waiting."""
    return unscored(msgspec.structs.replace(like, token_ids=like.token_ids[:1, :1], row_tokens=0, chains=None))


def unscored(part: MicroBatch) -> MicroBatch:
    """The same tokens, none of interest: for a stage that computes them, but has no head to score them with."""
    return msgspec.structs.replace(part, **{name: getattr(part, name)[:0] for name in COLUMNS})
