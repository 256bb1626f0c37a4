"""Returns and advantages along the tokens of each row: GAE (arXiv:1506.02438, equation 16).

A row's trained tokens follow each other in these columns even where others stand between them in the sequence (a tool's
answer, the next question): such holes are skipped, and nothing is discounted across them. A call's reward comes with its
last trained token, whichever that is, so it cannot get lost.

R(call) is already a return over calls. So the reward of a call's last trained token is R(call) minus R of the next call in
the row that has trained tokens (of the last one R itself): these telescope, and the undiscounted return of every token is the
R of its call, whichever calls share its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.algorithms.groups import sum_by

if TYPE_CHECKING:
    from torch import Tensor


def is_last(rows: Tensor) -> Tensor:
    """Which tokens are the last of their row: int64 `[tokens]`, row after row → bool `[tokens]`."""
    last = rows.new_ones(len(rows)).bool()
    last[:-1] = rows[1:] != rows[:-1]
    return last


def following(column: Tensor, rows: Tensor, by: int = 1) -> Tensor:
    """The entry `by` places later in the same row, 0 where there is none: `[tokens]`."""
    later = column.new_zeros(len(column))
    later[:-by] = column[by:].masked_fill(rows[by:] != rows[:-by], 0.0)
    return later


def discounted_sums(column: Tensor, rows: Tensor, factor: float) -> Tensor:
    """Of each token and those after it in its row: Σ_j factor^j column[t + j], float64 `[tokens]`.

    Each pass doubles how far a sum reaches, so a row of n tokens takes log2(n) passes over all of them.
    """
    longest = int(sum_by(rows.new_ones(len(rows)), rows).max()) if len(rows) else 0
    sums, reach = column, 1
    while reach < longest:
        sums = sums + factor**reach * following(sums, rows, reach)
        reach *= 2
    return sums


def token_rewards(rewards: Tensor, charges: Tensor, calls: Tensor, rows: Tensor) -> Tensor:
    """Reward of each token: the difference of R to the next call at the last of its call, less the token's charge.

    Args:
        rewards: R of each call, float64 `[calls]`.
        charges: float64 `[tokens]`.
        calls: int64 `[tokens]`.
        rows: int64 `[tokens]`, row after row.

    Returns:
        float64 `[tokens]`.
    """
    returns = rewards[calls]
    return returns - following(returns, rows) - charges


def generalized_advantages(
    rewards: Tensor, values: Tensor, rows: Tensor, discount: float, gae_lambda: float, last_values: Tensor | None = None
) -> Tensor:
    """Generalized advantage estimates (equations 11 and 16): Σ_j (γλ)^j δ_{t+j}, δ_t = r_t + γ V_{t+1} - V_t.

    Args:
        rewards: float64 `[tokens]`.
        values: float64 `[tokens]`, what was expected just before each token.
        rows: int64 `[tokens]`, row after row.
        discount: γ.
        gae_lambda: λ.
        last_values: float64 `[rows]`, what was expected after the last token of a row that would have gone on; 0 for a row
            that ended there, as all do if this is not given.

    Returns:
        float64 `[tokens]`.
    """
    to_come = following(values, rows)
    if last_values is not None:
        to_come = last_values[rows].where(is_last(rows), to_come)
    return discounted_sums(rewards + discount * to_come - values, rows, discount * gae_lambda)
