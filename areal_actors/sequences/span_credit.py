"""Rewards of spans of completions, assigned to places of training sequences by the tree of calls.

A span is credited where its tokens are. With `task.turn_discount` it is also carried to the calls before its own, by
the rule of rewards of calls (`credit.py`): a call gets the share of it that R(call) has of a reward of 1 of the span's
call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from areal_actors.core.span_rewards import SpanCredit, TokenSpan
from areal_actors.core.values import Interaction, Trajectory
from areal_actors.sequences.credit import Credit, discounted_returns

Shares = Mapping[str, Mapping[str, float]]
"""Share of every call in the spans of each call that has some, by ids: `shares[call of the spans][call]`."""


def span_shares(trajectory: Trajectory, credit: Credit) -> Shares:
    """Returns the shares of calls in spans; of other calls only with a discount."""
    calls = trajectory.interactions
    return {call.id: _shares_of(call, calls, credit) for call in calls if call.spans}


def _shares_of(call: Interaction, calls: Sequence[Interaction], credit: Credit) -> dict[str, float]:
    if credit.discount is None:
        return {call.id: 1.0}
    alone = [msgspec.structs.replace(other, reward=1.0 if other.id == call.id else None) for other in calls]
    return discounted_returns(alone, credit.discount, credit.branch)


def credited_spans(
    call: Interaction, start: int, end: int, shares: Shares, spans: Mapping[str, Sequence[TokenSpan]]
) -> tuple[SpanCredit, ...]:
    """Returns the places of spans in a call that a sequence has from `start` to `end`; `spans` are those by call."""
    own = [
        SpanCredit(
            key=f"{call.id}:{number}",
            start=start + span.start,
            end=start + span.end,
            reward=span.reward,
            name=span.name,
        )
        for number, span in enumerate(spans.get(call.id, ()))
    ]
    carried = [
        SpanCredit(
            key=f"{later}:{number}",
            start=start,
            end=end,
            reward=span.reward,
            name=span.name,
            share=share,
            is_carried=True,
        )
        for later, of_call in shares.items()
        if later != call.id and (share := of_call.get(call.id, 0.0))
        for number, span in enumerate(spans[later])
    ]
    return (*own, *carried)
