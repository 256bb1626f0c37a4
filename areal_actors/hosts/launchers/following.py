"""`areal-actors run RECIPE --follow` on a cluster.

It acts on the decisions of a run, beside it, until it is asked to end.
"""

from __future__ import annotations

import signal
import threading
from typing import Protocol


class AddedHosts(Protocol):
    """Hosts that decisions have added."""

    def follow(self, stopped: threading.Event) -> None:
        """Start and end hosts until `stopped` is set; blocks."""
        ...

    def dismiss(self) -> None:
        """Have all hosts leave."""
        ...


def follow_run(hosts: AddedHosts, stopped: threading.Event) -> int:
    """Follow decisions until `stopped` is set, or SIGTERM or SIGINT; then the added hosts leave.

    Returns the exit status.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    hosts.follow(stopped)
    hosts.dismiss()
    return 0
