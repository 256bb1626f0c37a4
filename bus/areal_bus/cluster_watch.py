"""Watches a cluster of NATS servers for the loss of the leader of a run's log, and of other servers that keep it."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

import msgspec

from areal_bus.errors import LogUnavailable
from areal_bus.message import FrozenMeta
from areal_bus.nats_streams import Json, Streams

_LOOK_SECONDS: Final = 1.0


class LeaderChange(msgspec.Struct, metaclass=FrozenMeta):
    """A change in the cluster of a run's log, noticed once the log has a leader again."""

    reason: str
    seconds: float
    """Duration from the last answer of a leader to the next one's first."""
    leader: str


class ClusterWatch:
    """Watches the leader and the other servers of a run's log."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.leader = ""
        """Server that led the log at the last look; empty before."""
        self._offline: frozenset[str] = frozenset()
        self._answered = monotonic()

    async def next_change(self) -> LeaderChange:
        """Wait for another leader, or for the loss of another server."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                cluster = (await self._streams.api(f"STREAM.INFO.{self._streams.log}", {})).get("cluster", {})
            except LogUnavailable:
                continue
            silent, self._answered = monotonic() - self._answered - _LOOK_SECONDS, monotonic()
            if reason := self._describe_loss(cluster):
                return LeaderChange(reason=reason, seconds=max(silent, 0.0), leader=self.leader)

    def _describe_loss(self, cluster: Json) -> str:
        """Returns what was lost since the last look; empty if nothing."""
        leader = str(cluster.get("leader", ""))
        offline = frozenset(str(replica["name"]) for replica in cluster.get("replicas", ()) if replica.get("offline"))
        before, gone = self.leader, sorted(offline - self._offline)
        self.leader, self._offline = leader, offline
        if before not in ("", leader):
            return f"{before} no longer leads stream {self._streams.log}, {leader} does"
        return f"{', '.join(gone)} is offline; {leader} leads stream {self._streams.log}" if gone else ""
