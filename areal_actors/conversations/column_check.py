"""Checks of token columns: what an engine says of the tokens it sampled must be able to be true.

Used where a completion enters the gateway and again where a trajectory enters a training step, so that both refuse the same
numbers. A check never changes a number: columns are accepted as they are or refused as a whole.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from math import isfinite
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from areal_actors.values import TokenColumns, Trajectory
from bus.message import FrozenMeta

LOGPROB_TOLERANCE = 1e-4
"""Nats by which a log-probability may exceed 0. A log-softmax in float32 over logits of magnitude 1000 is off by up to 6e-5;
a value within the tolerance is recorded and trained as it is, without clamping."""
LARGEST_VERSION = 2**31 - 1
"""Versions are int32 columns in training rows."""


class Fault(msgspec.Struct, metaclass=FrozenMeta):
    """The first thing that is wrong with columns, a completion or a trajectory."""

    check: str
    """Name of the check that failed, the same for all faults of a kind."""
    detail: str
    """What was found and what was expected."""
    position: int = -1
    """Token at which it was found, counted from 0; -1 if it is not about one token."""

    def __str__(self) -> str:
        where = f" at token {self.position}" if self.position >= 0 else ""
        return f"{self.check}{where}: {self.detail}"


def structure_fault(columns: TokenColumns) -> Fault | None:
    """The first of: columns of different lengths, version spans that do not cover every token once, versions below 0."""
    ids, logprobs = len(columns.token_ids), len(columns.logprobs)
    if ids != logprobs or ids % 4:
        expected = "one float32 log-probability for each uint32 id was expected"
        return Fault(check="column lengths", detail=f"{ids / 4:g} token ids and {logprobs / 4:g} log-probabilities; {expected}")
    end = 0
    for span in columns.versions:
        if span.start != end or span.end <= span.start:
            found = f"a span from {span.start} to {span.end} follows token {end}"
            return Fault(check="version spans", detail=f"{found}; spans must follow one another without a gap", position=end)
        if not 0 <= span.weight_version <= LARGEST_VERSION:
            found = f"weight version {span.weight_version}; versions are counted from 0"
            return Fault(check="weight version", detail=found, position=end)
        end = span.end
    if end != ids // 4:
        return Fault(check="version spans", detail=f"spans cover {end} of {ids // 4} tokens; they must cover all of them", position=end)
    return None


def number_fault(token_ids: NDArray[Any], logprobs: NDArray[Any], vocabulary: int) -> Fault | None:
    """The first token id outside the vocabulary, or else the first log-probability that no probability has.

    Args:
        token_ids: integers, shape [tokens].
        logprobs: float32, shape [tokens], in nats; prompt tokens have 0.
        vocabulary: number of ids of the model; 0 where it is unknown, then no id is refused.
    """
    if not len(token_ids):
        return None
    if vocabulary and int(token_ids.max()) >= vocabulary:
        place = int(np.argmax(token_ids >= vocabulary))
        found = f"id {int(token_ids[place])}; the model's ids are 0 to {vocabulary - 1}"
        return Fault(check="vocabulary", detail=found, position=place)
    # A NaN compares false with everything, and is the maximum of what holds one.
    if not (logprobs.max() <= LOGPROB_TOLERANCE and logprobs.min() > -np.inf):
        place = int(np.argmin(np.isfinite(logprobs) & (logprobs <= LOGPROB_TOLERANCE)))
        found = f"{float(logprobs[place]):g}; a finite number of at most 0 was expected"
        return Fault(check="log-probability", detail=found, position=place)
    return None


def trajectory_fault(trajectory: Trajectory) -> Fault | None:
    """Why rows cannot be made of a trajectory; their numbers are checked in the rows themselves."""
    if not trajectory.interactions:
        return Fault(check="empty", detail="the trajectory has no interaction")
    earlier: set[str] = set()
    for turn in trajectory.interactions:
        if not len(turn.completion):
            return Fault(check="empty", detail=f"interaction {turn.id} has no sampled token")
        fault = structure_fault(turn.completion) or _tree_fault(turn.parent, turn.prompt_suffix, earlier)
        if fault is not None:
            return msgspec.structs.replace(fault, detail=f"in interaction {turn.id}: {fault.detail}")
        earlier.add(turn.id)
    rewards = [trajectory.reward, *(turn.reward for turn in trajectory.interactions if turn.reward is not None)]
    if unfit := [reward for reward in rewards if not isfinite(reward)]:
        return Fault(check="reward", detail=f"reward {unfit[0]}; rewards must be finite")
    return None


def _tree_fault(parent: str, prompt_suffix: bytes, earlier: AbstractSet[str]) -> Fault | None:
    if parent and parent not in earlier:
        return Fault(check="conversation tree", detail=f"it continues interaction {parent}, which does not precede it in the trajectory")
    if len(prompt_suffix) % 4:
        return Fault(check="column lengths", detail=f"{len(prompt_suffix)} bytes of prompt ids; uint32 ids have 4 each")
    return None
