"""`areal launch RECIPE --follow` on Ray and Slurm: acts on the decisions of a run, beside it, until it is asked to end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping

from areal_actors.hosts.plan import LaunchPlan
from areal_actors.hosts.scaled_hosts import HostStarter, ScaledHosts


def follow_run(plan: LaunchPlan, starter: HostStarter, stopped: threading.Event, living: Mapping[str, str] | None = None) -> int:
    """Follow decisions until `stopped` is set, or SIGTERM or SIGINT; then the added hosts leave. Returns the exit status.

    `living`: hosts that a follower before this one has started, with their roles.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    hosts = ScaledHosts(plan, starter, living, since=time.time())
    hosts.follow(stopped)
    hosts.dismiss()
    return 0
