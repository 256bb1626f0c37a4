"""The gateways that a run leaves to other hosts.

Decides which worker serves each, and which one is taken over by the run's own host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from areal_actors.core.gateways import gateway_name


@dataclass
class GatewayShares:
    """At most one process serves a gateway at a time.

    It is free only after the bus accepts nothing more of the one before.
    """

    processes: Mapping[int, str]
    """Gateways of other hosts by number, and the process of the run's own host that may take each over."""
    workers: dict[str, int] = field(default_factory=dict)
    """Gateways that are served by remote workers."""
    taken_over: set[int] = field(default_factory=set)

    def free(self) -> int | None:
        """Returns the first gateway that no process serves; None if there is none."""
        served = {*self.workers.values(), *self.taken_over}
        return next((number for number in self.processes if number not in served), None)

    def assign(self, worker: str) -> str:
        """Have a worker serve the first free gateway; returns the name of its actor, empty if none is free."""
        if (number := self.free()) is None:
            return ""
        self.workers[worker] = number
        return gateway_name(number)

    def actor_of(self, worker: str) -> str:
        """Returns the gateway that a worker serves; empty if it serves none."""
        return gateway_name(self.workers[worker]) if worker in self.workers else ""

    def release(self, worker: str) -> int | None:
        """End the service of a worker; returns the gateway that is free now, None if it served none."""
        return self.workers.pop(worker, None)

    def take_over(self, number: int) -> str:
        """Have the run's own host serve a gateway.

        Returns the process to be started, empty if a worker serves it again.
        """
        if number in self.taken_over or number in self.workers.values():
            return ""
        self.taken_over.add(number)
        return self.processes[number]
