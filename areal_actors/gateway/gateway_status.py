"""Describes a gateway: what it waits for, its sessions, and its calls."""

from __future__ import annotations

from areal_actors.gateway.external_sessions import ExternalSessions
from areal_actors.messages import GatewayDescribed


def describe_gateway(external: ExternalSessions, now: float) -> GatewayDescribed:
    """Returns what is missing until calls are answered, and counts of sessions and calls."""
    ready = {
        "the run's log": external.caught_up,
        "weights": external.calls.served is not None,
        "an inference worker": bool(external.calls.pool.versions),
    }
    return GatewayDescribed(
        missing=", ".join(name for name in ready if not ready[name]),
        sessions=external.registry.count_by_state(),
        **(external.slots.counts(now) if external.share.number == 0 else {}),
        in_hand=external.calls.pool.in_flight,
        refused_completions=dict(external.calls.refused),
    )


def gateway_status(external: ExternalSessions) -> dict[str, float | str]:
    """Returns open sessions, completions by worker, prefixes that workers did not hold, bytes of kept conversations."""
    in_flight = {f"in flight of {worker}": count for worker, count in external.calls.pool.in_flight.items()}
    refused = {f"refused of {worker}": count for worker, count in external.calls.refused.items()}
    prefixes = {f"prefixes, {problem}": count for problem, count in external.calls.pool.held.problems.items()}
    kept = external.ends.conversations
    conversations = {"conversations kept, bytes": float(kept.size())} if kept.settings.keep else {}
    waits = external.slots.describe_waits() if external.share.number == 0 else ""
    groups = {"groups": waits} if waits else {}
    return {"sessions": len(external.registry), **in_flight, **refused, **prefixes, **conversations, **groups}
