"""The calls that each call of an episode continues for credit.

They are edges of a graph without circles, from earlier to later calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from areal_actors.core.values import Interaction


def links_of(call: Interaction) -> tuple[str, ...]:
    """Ids of the calls that a call continues, as recorded when it began."""
    return call.follows or ((call.parent,) if call.parent else ())


def continuing_calls(interactions: Sequence[Interaction]) -> dict[str, list[str]]:
    """The calls that continue each call, by id.

    A link that was found by time does not count where the messages of another call continue the earlier one after all:
    the call in between ran beside it. Nor does it if the earlier call has a reward of its own, and they are
    alternatives (they continue the same parent) or have different roles: a judge's reward is no part of its solver's.
    """
    by_id = {call.id: call for call in interactions}
    links = {call.id: _links(call, by_id) for call in interactions}
    continued = {call.parent for call in interactions if call.parent in links[call.id]}
    continuing: dict[str, list[str]] = {identifier: [] for identifier in by_id}
    for call in interactions:
        for link in links[call.id]:
            if link == call.parent or link not in continued:
                continuing[link].append(call.id)
    return continuing


def _links(call: Interaction, by_id: Mapping[str, Interaction]) -> tuple[str, ...]:
    def counts(link: str) -> bool:
        is_separate = call.parent != "" or by_id[link].role != call.role
        return link == call.parent or by_id[link].reward is None or not is_separate

    links = tuple(link for link in links_of(call) if link in by_id and counts(link))
    return links or ((call.parent,) if call.parent in by_id else ())
