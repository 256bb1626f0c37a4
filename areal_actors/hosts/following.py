"""`areal launch RECIPE --follow` on Ray and Slurm: acts on the decisions of a run, beside it, until it is asked to end."""

from __future__ import annotations

import signal
import threading

from areal_actors.hosts.plan import LaunchPlan
from areal_actors.hosts.scaled_hosts import HostStarter, ScaledHosts


def follow_run(plan: LaunchPlan, starter: HostStarter, stopped: threading.Event) -> int:
    """Follow decisions until `stopped` is set, or SIGTERM or SIGINT; then the added hosts leave. Returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    hosts = ScaledHosts(plan, starter)
    hosts.follow(stopped)
    hosts.dismiss()
    return 0
