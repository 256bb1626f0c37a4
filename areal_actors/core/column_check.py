"""Validation of token columns: ids, log-probabilities and versions that an engine reports must be possible values.

The same checks run where a completion enters the gateway and where a trajectory enters a training step. They never
change a number: columns are accepted as they are or rejected as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import TokenColumns, Trajectory
from areal_bus.message import FrozenMeta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")

FEW = 256
"""Tokens up to which numbers are checked without numpy."""
LOGPROB_TOLERANCE = 1e-4
"""Nats by which a log-probability may exceed 0. A log-softmax in float32 over logits of magnitude 1000 is off by up to
6e-5; a value within the tolerance is recorded and trained as it is, without clamping."""
LARGEST_VERSION = 2**31 - 1
"""Versions are int32 columns in training rows."""


class ColumnFault(msgspec.Struct, metaclass=FrozenMeta):
    """First failed check of columns, a completion or a trajectory."""

    check: str
    """Name of the failed check."""
    detail: str
    """Found and expected values."""
    position: int = -1
    """Index of the token; -1 if the fault is not about one token."""

    def __str__(self) -> str:
        where = f" at token {self.position}" if self.position >= 0 else ""
        return f"{self.check}{where}: {self.detail}"


def structure_fault(columns: TokenColumns) -> ColumnFault | None:
    """Check the lengths of columns, and that version spans cover every token once, with versions from 0 on."""
    ids, logprobs = len(columns.token_ids), len(columns.logprobs)
    if ids != logprobs or ids % 4:
        expected = "one float32 log-probability for each uint32 id was expected"
        return ColumnFault(
            check="column lengths", detail=f"{ids / 4:g} token ids and {logprobs / 4:g} log-probabilities; {expected}"
        )
    end = 0
    for span in columns.versions:
        if span.start != end or span.end <= span.start:
            fault = f"a span from {span.start} to {span.end} follows token {end}"
            return ColumnFault(
                check="version spans", detail=f"{fault}; spans must follow one another without a gap", position=end
            )
        if not 0 <= span.weight_version <= LARGEST_VERSION:
            fault = f"weight version {span.weight_version}; versions are counted from 0"
            return ColumnFault(check="weight version", detail=fault, position=end)
        end = span.end
    if end != ids // 4:
        return ColumnFault(
            check="version spans",
            detail=f"spans cover {end} of {ids // 4} tokens; they must cover all of them",
            position=end,
        )
    return None


def number_fault(token_ids: NDArray[Any], logprobs: NDArray[Any], vocabulary: int) -> ColumnFault | None:
    """Check for token ids outside the vocabulary, then for impossible log-probabilities.

    Args:
        token_ids: integers, shape [tokens].
        logprobs: float32, shape [tokens], in nats; prompt tokens have 0.
        vocabulary: size of the model's vocabulary; 0 if unknown, then ids are not checked.
    """
    if not len(token_ids) or (len(token_ids) <= FEW and _are_few_valid(token_ids, logprobs, vocabulary)):
        return None
    if vocabulary and int(np.maximum.reduce(token_ids)) >= vocabulary:
        place = int(np.argmax(token_ids >= vocabulary))
        fault = f"id {int(token_ids[place])}; the model's ids are 0 to {vocabulary - 1}"
        return ColumnFault(check="vocabulary", detail=fault, position=place)
    # A NaN compares false with everything, and the maximum of an array with a NaN is NaN.
    if not (np.maximum.reduce(logprobs) <= LOGPROB_TOLERANCE and np.minimum.reduce(logprobs) > -inf):
        place = int(np.argmin(np.isfinite(logprobs) & (logprobs <= LOGPROB_TOLERANCE)))
        fault = f"{float(logprobs[place]):g}; a finite number of at most 0 was expected"
        return ColumnFault(check="log-probability", detail=fault, position=place)
    return None


def _are_few_valid(token_ids: NDArray[Any], logprobs: NDArray[Any], vocabulary: int) -> bool:
    """True if numbers are surely valid; for a few, Python's loops take less time than the calls of numpy."""
    values = logprobs.tolist()
    # A sum is finite only if all of its numbers are.
    return (
        isfinite(sum(values))
        and max(values) <= LOGPROB_TOLERANCE
        and (not vocabulary or max(token_ids.tolist()) < vocabulary)
    )


def trajectory_fault(trajectory: Trajectory) -> ColumnFault | None:
    """Check that a trajectory can be converted to rows; their numbers are checked in the rows."""
    if not trajectory.interactions:
        return ColumnFault(check="empty", detail="the trajectory has no interaction")
    earlier: set[str] = set()
    for turn in trajectory.interactions:
        if not len(turn.completion):
            return ColumnFault(check="empty", detail=f"interaction {turn.id} has no sampled token")
        fault = structure_fault(turn.completion) or _tree_fault(
            (turn.parent, *turn.follows), turn.prompt_suffix, earlier
        )
        if fault is None and turn.temperature is not None and not 0 < turn.temperature < inf:
            fault = ColumnFault(
                check="temperature", detail=f"{turn.temperature:g}; a finite number above 0 was expected"
            )
        if fault is not None:
            return msgspec.structs.replace(fault, detail=f"in interaction {turn.id}: {fault.detail}")
        earlier.add(turn.id)
    rewards = [trajectory.reward, *(turn.reward for turn in trajectory.interactions if turn.reward is not None)]
    if unfit := [reward for reward in rewards if not isfinite(reward)]:
        return ColumnFault(check="reward", detail=f"reward {unfit[0]}; rewards must be finite")
    return None


def _tree_fault(continued: Sequence[str], prompt_suffix: bytes, earlier: AbstractSet[str]) -> ColumnFault | None:
    if later := [name for name in continued if name and name not in earlier]:
        return ColumnFault(
            check="conversation tree",
            detail=f"it continues interaction {later[0]}, which does not precede it in the trajectory",
        )
    if len(prompt_suffix) % 4:
        return ColumnFault(
            check="column lengths", detail=f"{len(prompt_suffix)} bytes of prompt ids; uint32 ids have 4 each"
        )
    return None
