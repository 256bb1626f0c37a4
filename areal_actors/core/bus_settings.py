"""The table `[bus]` of a recipe: the NATS server of the run."""

from __future__ import annotations

from typing import Literal

from areal_actors.core.config import Config, NonNegativeInt, Port, PositiveFloat, PositiveInt


class BusSettings(Config):
    """`[bus]`: the NATS server of the run."""

    url: str = ""
    """URL of a running server, `nats://host:port`, or `nats://user:password@host:port` if it has users; empty starts
    one for this run, with a user and password for each process. Of a cluster list several:
    `nats://user:password@host1:port,host2:port,host3:port`. `tls://` encrypts; the certificate is verified by the
    authorities of the system, or of the file in the variable `SSL_CERT_FILE`."""
    replicas: PositiveInt = 1
    """Servers of the cluster of `url` that each keep the log, the work queue and the values: 3 survive the loss of one
    server, 5 of two. See docs/scaling.md."""
    monitor_url: str = ""
    """URL of a running server with a read-only user, for `monitor.json`; empty uses `url`."""
    host: str = ""
    """Address on which the run accepts remote workers (`areal-actors join`): one of this host, or `0.0.0.0` for all its
    interfaces. Empty: the loopback interface only, and no worker can join. See docs/scaling.md."""
    tls: bool = False
    """Encrypt what other hosts exchange with the run's own server and with its HTTP server of files. The run makes a
    certificate at each start, and `join.json` has its fingerprint, so that workers verify it; no other setting is
    needed. See docs/scaling.md."""
    certificate: str = ""
    """PEM file of a certificate for `tls` that keeps its fingerprint from start to start; empty: one for each start."""
    certificate_key: str = ""
    """PEM file of the key of `certificate`, without a password."""
    port: Port = 0
    """Port of the run's own server; 0 selects a free one."""
    objects_port: Port = 0
    """Port of the HTTP server from which joined workers pull code, model and weights, on `host`; 0 selects a free
    one."""
    lease_seconds: PositiveFloat = 5.0
    """Seconds after which a work item (an episode, a score) whose lease was not renewed is redelivered to another
    worker. The worker's event loop, on which no agent runs, renews the lease three times per period. Increase it if
    processes or the network pause for seconds. The work items of a dead worker wait for this time; one that had been in
    progress for more than four times as long waits for a quarter of that time, at most for six times
    `lease_seconds`."""
    sync: Literal["5s", "1s", "always"] = "5s"
    """Interval between syncs of the log to disk by the run's own server, which bounds the loss in a power failure.
    `always` syncs before every confirmation. A checkpoint is complete only once the log before it is on disk,
    regardless of this setting."""
    max_restarts: NonNegativeInt = 10
    """Maximum number of restarts of the run's own server within `window_seconds`; beyond it the run ends."""
    window_seconds: PositiveFloat = 60.0
    """Period, in seconds, in which `max_restarts` are counted."""
    answer_seconds: PositiveFloat = 15.0
    """Seconds without an answer after which the run's own server is killed and restarted."""
