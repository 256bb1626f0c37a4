"""Validates `[bus]`: its address, encryption and leases."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.core.autoscale_settings import AutoscaleSettings
from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.host_settings import HostsSettings
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, toml_value
from areal_actors.core.task_settings import TaskSettings

MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 1.0, 60.0
"""Bounds of a work item's lease in seconds; a lease as long as an attempt at an episode is also valid."""


def find_problems(bus: BusSettings, hosts: HostsSettings, autoscale: AutoscaleSettings, task: TaskSettings) -> Problems:
    """Yields what is wrong with the bus of a recipe."""
    if (url := bus.url) and not url.startswith(("nats://", "tls://")):
        yield (
            ("bus", "url"),
            f'found {toml_value(url)}; write `nats://host:port`, or "" for a server of this run\'s own',
        )
    if bus.tls and bus.url:
        yield (
            ("bus", "tls"),
            (
                "found true, but the server of bus.url encrypts by its own settings; write tls:// in bus.url, and leave"
                " bus.tls out"
            ),
        )
    elif bus.tls and not (bus.host or hosts.joined_hosts() or autoscale.enabled):
        yield (
            ("bus", "tls"),
            "found true, but without bus.host no other host reaches the bus; set bus.host, or leave bus.tls out",
        )
    if bool(bus.certificate) != bool(bus.certificate_key):
        yield ("bus", "certificate"), "certificate and certificate_key belong together; name both files, or neither"
    elif bus.certificate and not bus.tls:
        yield (
            ("bus", "certificate"),
            "found a file, but the run does not encrypt; set bus.tls = true, or leave the file out",
        )
    key, lease, attempt = ("bus", "lease_seconds"), bus.lease_seconds, task.timeout_seconds
    if lease < MIN_LEASE_SECONDS:
        fault = (
            f"found {lease:g}, but a busy worker may renew its leases a second late, and its episodes would run twice"
        )
        yield key, f"{fault}; write at least {MIN_LEASE_SECONDS:g}"
    elif lease > (most := max(attempt, MAX_LEASE_SECONDS)):
        fault = f"found {lease:g}, but after a worker's death its episodes wait for the whole lease"
        yield key, f"{fault}, and an attempt takes at most task.timeout_seconds = {attempt:g}; write at most {most:g}"


def unused_settings(bus: BusSettings, hosts: HostsSettings, autoscale: AutoscaleSettings) -> Iterator[Key]:
    """Yields settings of a server that other hosts reach, or that runs already, for a run without one."""
    if not (bus.host or hosts.joined_hosts() or autoscale.enabled):
        yield from (("bus", name) for name in ("tls", "certificate", "certificate_key", "objects_port"))
    if not bus.url:
        yield from (("bus", name) for name in ("replicas", "monitor_url"))
