"""A model on paper: the load of each process of a run on many GPUs, from measured figures, and its limits.

Everything but `Cluster` is measured by `scale.py`. A process in Python has one core; nats-server has as many as its
host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

PYTHON_CORES = 1.0
HEADROOM = 0.7
"""Share of a process's core, or of a rate, up to which delays stay short."""
RENEWALS_PER_LEASE = 3
DEFAULT_LEASE_SECONDS = 5.0


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A run; all of it is assumed."""

    training_gpus: int = 256
    generating_gpus: int = 744
    gpus_a_host: int = 8
    tokens_per_second: float = 2500.0
    """Tokens that a generating GPU samples per second."""
    episode_tokens: int = 4000
    """Sampled tokens of an episode, in one call."""
    at_once: int = 64
    """Episodes in flight for each generating GPU."""
    episodes_a_worker: int = 512
    """Episodes that a rollout worker runs at once."""
    batch_episodes: int = 16384
    weights_gb: float = 16.0
    network_gbit: float = 200.0
    server_cores: int = 8
    """Cores of the host of nats-server."""
    gateways: int = 1
    lease_seconds: float = DEFAULT_LEASE_SECONDS

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.training_gpus + self.generating_gpus

    @property
    def episodes_per_second(self) -> float:
        """Episodes that end per second, which the trainer takes."""
        return self.generating_gpus * self.tokens_per_second / self.episode_tokens

    @property
    def in_flight(self) -> int:
        """Episodes in flight."""
        return self.generating_gpus * self.at_once

    @property
    def rollout_workers(self) -> int:
        """Processes that run agents."""
        return math.ceil(self.in_flight / self.episodes_a_worker)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step that takes the episodes as they come."""
        return self.batch_episodes / self.episodes_per_second


class Wall(msgspec.Struct, frozen=True, kw_only=True):
    """A resource: what the run takes of it, and what there is."""

    name: str
    used: float
    limit: float
    unit: str
    grows_with: str
    """`episodes` per second, episodes `in flight`, or `hosts`: all of them grow with the GPUs."""
    moved_by: str

    def gpus(self, cluster: Cluster) -> int:
        """GPUs, in the proportion of this cluster, at which it is reached."""
        return int(cluster.gpus * self.limit / self.used)

    def episodes(self, cluster: Cluster) -> float:
        """Episodes per second at which it is reached."""
        return cluster.episodes_per_second * self.limit / self.used


LOG_BYTES_A_TOKEN = 6.4
"""From the two lengths of answers in `log_bytes.py`: the log-probabilities of these engines are constant, and compress
to nothing."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Measured figures of an episode, with tokens extrapolated from two lengths of answers."""

    cpu_ms: Mapping[str, float]
    """Milliseconds of CPU by process, with `tokens` tokens."""
    cpu_us_a_token: Mapping[str, float]
    tokens: int
    events: float
    log_bytes: float
    log_bytes_a_token: float
    kib_in_flight: Mapping[str, float]
    events_per_second: float
    """Events that one stream of one server took in and delivered to all readers."""
    stored_us: float
    """CPU microseconds of the server for a message that is stored and not delivered."""
    delivered_us: float
    """CPU microseconds of the server for each delivery."""
    max_waiting: int
    open_files: int
    pull_cpu_s_per_gb: float

    def cpu(self, process: str, tokens: int) -> float:
        """Seconds of CPU of an episode with this number of tokens."""
        more = max(self.cpu_us_a_token.get(process, 0.0), 0.0) * (tokens - self.tokens)
        return self.cpu_ms[process] / 1000 + more / 1e6

    def bytes_of(self, tokens: int) -> float:
        """Bytes of an episode in the log."""
        return self.log_bytes + self.log_bytes_a_token * (tokens - self.tokens)


def costs(
    main: Mapping[str, Any],
    short: Mapping[str, Any],
    long: Mapping[str, Any],
    streams: list[Any],
    rest: Mapping[str, Any],
) -> Costs:
    """Costs from the figures of the large run and of smaller ones.

    Two runs have answers of different length, one stream is measured with and without readers.
    """
    tokens = long["tokens"] - short["tokens"]
    alone = next(case for case in streams if case["streams"] == 1 and case["consumers"] == 0)
    read = next(case for case in streams if case["streams"] == 1 and case["consumers"] > 0)
    cpu, more = long["cpu_ms_per_episode"], short["cpu_ms_per_episode"]
    return Costs(
        cpu_ms=main["cpu_ms_per_episode"],
        cpu_us_a_token={name: round(1000 * (cpu[name] - more[name]) / tokens, 3) for name in cpu if name in more},
        tokens=main["tokens"],
        events=main["events_per_episode"],
        log_bytes=main["log_bytes_per_episode"],
        log_bytes_a_token=LOG_BYTES_A_TOKEN,
        kib_in_flight=main["kib_per_episode"],
        events_per_second=read["events_per_second"],
        stored_us=alone["server_cpu_us_per_event"],
        delivered_us=max(read["server_cpu_us_per_event"] - alone["server_cpu_us_per_event"], 0.0) / read["consumers"],
        max_waiting=main["max_waiting"],
        open_files=rest["open_files"],
        pull_cpu_s_per_gb=rest["pull_cpu_s_per_gb"],
    )


def gateway_of(costs: Costs) -> list[str]:
    """Names of the gateways' processes."""
    return [name for name in costs.cpu_ms if name.startswith("gateway")]


def walls(cluster: Cluster, costs: Costs) -> Iterator[Wall]:
    """Each process and each shared resource of the run, at the load of this cluster."""
    rate, tokens = cluster.episodes_per_second, cluster.episode_tokens
    hosts, version = cluster.generating_gpus / cluster.gpus_a_host, cluster.step_seconds
    loaded = cluster.generating_gpus * READERS
    renewals = RENEWALS_PER_LEASE * cluster.in_flight / cluster.lease_seconds
    gigabytes = cluster.network_gbit / 8

    def wall(name: str, used: float, limit: float, unit: str, grows_with: str, moved_by: str) -> Wall:
        return Wall(name=name, used=used, limit=limit, unit=unit, grows_with=grows_with, moved_by=moved_by)

    core = HEADROOM * PYTHON_CORES
    gateway = sum(costs.cpu(name, tokens) for name in gateway_of(costs)) / cluster.gateways
    more_gateways, processes = "more gateways", "another process for each of its actors (`actors.*.process`)"
    yield wall("CPU of each gateway", rate * gateway, core, "cores", "episodes", more_gateways)
    yield wall("CPU of control", rate * costs.cpu("control", tokens), core, "cores", "episodes", processes)
    reads = "each rank reads its own rows"
    yield wall(
        "CPU of the trainer's process for rows", rate * costs.cpu("trainer", tokens), core, "cores", "episodes", reads
    )
    server = (
        rate * costs.cpu("nats-server", tokens)
        + renewals * costs.stored_us / 1e6
        + loaded / version * costs.delivered_us / 1e6
    )
    yield wall(
        "CPU of nats-server",
        server,
        HEADROOM * cluster.server_cores,
        "cores",
        "episodes",
        "cores; the log on a server of its own",
    )
    stream = HEADROOM * costs.events_per_second
    yield wall(
        "events of one stream", rate * costs.events, stream, "events/s", "episodes", "streams by hash of the group"
    )
    log = rate * costs.bytes_of(tokens) / 1e6
    yield wall(
        "network of nats-server, to all readers",
        log * READERS / 1000,
        HEADROOM * gigabytes,
        "GB/s",
        "episodes",
        "rows by reference",
    )
    yield wall("disk of the log", log, DISK_MB, "MB/s", "episodes", "`log.compress`; streams on several servers")
    leases = "`bus.lease_seconds`"
    yield wall("renewals of leases", renewals, HEADROOM / (costs.stored_us / 1e6), "messages/s", "in flight", leases)
    files, flying = HEADROOM * costs.open_files, cluster.in_flight
    yield wall(
        "open connections of each gateway",
        flying / cluster.gateways,
        files,
        "files",
        "in flight",
        "`ulimit -n`; more gateways",
    )
    memory = sum(max(costs.kib_in_flight[name], 0.0) for name in gateway_of(costs)) / cluster.gateways
    yield wall("memory of each gateway", flying * memory / 2**20, MEMORY_GIB, "GiB", "in flight", more_gateways)
    waiting = "more episodes for each worker; `max_waiting` of the consumer"
    yield wall(
        "rollout workers that wait for work",
        cluster.rollout_workers,
        costs.max_waiting,
        "workers",
        "in flight",
        waiting,
    )
    shared = '`trainer.weights_folder` on a shared file system; `generation.server.weights = "broadcast"`'
    yield wall(
        "HTTP pull of weights",
        hosts * cluster.weights_gb / gigabytes / HEADROOM,
        version,
        "s a version",
        "hosts",
        shared,
    )
    pull = hosts * cluster.weights_gb * costs.pull_cpu_s_per_gb / version
    yield wall("CPU of the publisher for pulls", pull, core, "cores", "hosts", shared)
    loads = "one event for all workers of a host"
    yield wall("messages of loaded weights", loaded / version, stream, "messages/s", "hosts", loads)


READERS = 4
"""Processes that read every event of an episode, or of loaded weights: control, gateway, trainer and supervisor."""
DISK_MB = 500.0
"""Megabytes per second that a disk writes for long."""
MEMORY_GIB = 32.0

HEADER = ["wall", "used", "limit", "unit", "reached at GPUs", "episodes/s", "moved by"]


def rows(cluster: Cluster, costs: Costs) -> list[dict[str, Any]]:
    """The walls, the nearest first; one of which too little was measured is left out."""
    found = sorted((wall for wall in walls(cluster, costs) if wall.used > 0), key=lambda wall: wall.gpus(cluster))
    return [
        {
            "wall": wall.name,
            "used": round(wall.used, 3),
            "limit": round(wall.limit, 1),
            "unit": wall.unit,
            "gpus": wall.gpus(cluster),
            "episodes_per_second": round(wall.episodes(cluster)),
            "grows_with": wall.grows_with,
            "moved_by": wall.moved_by,
        }
        for wall in found
    ]
