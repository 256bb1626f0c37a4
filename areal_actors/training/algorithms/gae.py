"""Returns and advantages along the tokens of each sequence: GAE (arXiv:1506.02438, equation 16).

Trained tokens of a sequence are adjacent in these columns even if untrained ones lie between them in the sequence (a
tool result, the next user message): gaps are skipped without discount. The reward of a call is assigned to its last
trained token, so that it is never lost.

R(call) is already a return over calls. So the reward of a call's last trained token is R(call) minus R of the next call
in the sequence that has trained tokens (R itself for the last call). These telescope: the undiscounted return of every
token is the R of its call, whichever calls share its sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.training.algorithms.groups import sum_by

if TYPE_CHECKING:
    from torch import Tensor


def following(column: Tensor, sequences: Tensor, by: int = 1) -> Tensor:
    """Returns the entry `by` positions later in the same sequence, 0 if there is none: `[tokens]`."""
    later = column.new_zeros(len(column))
    later[:-by] = column[by:].masked_fill(sequences[by:] != sequences[:-by], 0.0)
    return later


def discounted_sums(column: Tensor, sequences: Tensor, factor: float) -> Tensor:
    """Returns discounted sums to the end of each sequence: Σ_j factor^j column[t + j], float64 `[tokens]`.

    Each pass doubles the reach of the sums, so sequences of n tokens take log2(n) passes.
    """
    longest = int(sum_by(sequences.new_ones(len(sequences)), sequences).max()) if len(sequences) else 0
    sums, reach = column, 1
    while reach < longest:
        sums = sums + factor**reach * following(sums, sequences, reach)
        reach *= 2
    return sums


def token_rewards(rewards: Tensor, penalties: Tensor, calls: Tensor, sequences: Tensor) -> Tensor:
    """Returns token rewards: R minus R of the next call at the last token of each call, minus the penalty of the token.

    Args:
        rewards: R of each call, float64 `[calls]`.
        penalties: KL penalties, float64 `[tokens]`.
        calls: int64 `[tokens]`.
        sequences: int64 `[tokens]`, sequence after sequence.

    Returns:
        float64 `[tokens]`.
    """
    returns = rewards[calls]
    return returns - following(returns, sequences) - penalties


def generalized_advantages(
    rewards: Tensor,
    values: Tensor,
    sequences: Tensor,
    discount: float,
    gae_lambda: float,
    last_values: Tensor | None = None,
) -> Tensor:
    """Returns generalized advantage estimates (equations 11 and 16): Σ_j (γλ)^j δ_{t+j}, δ_t = r_t + γ V_{t+1} - V_t.

    Args:
        rewards: float64 `[tokens]`.
        values: float64 `[tokens]`, predicted just before each token.
        sequences: int64 `[tokens]`, sequence after sequence.
        discount: γ.
        gae_lambda: λ.
        last_values: float64 `[sequences]`, after the last token of a truncated sequence; 0 for one that ended there, as
            all do if not given.

    Returns:
        float64 `[tokens]`.
    """
    next_values = following(values, sequences)
    if last_values is not None:
        is_last = following(values.new_ones(len(values)), sequences) == 0
        next_values = last_values[sequences].where(is_last, next_values)
    return discounted_sums(rewards + discount * next_values - values, sequences, discount * gae_lambda)
