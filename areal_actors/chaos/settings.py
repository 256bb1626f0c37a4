"""The recipe's `[chaos]`: kinds and rates of the faults injected into the run. Off by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from areal_actors.core.config import Config, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Kind = Literal["kill", "pause", "partition", "flip", "slow_disk", "bad_completion"]

SERVER = "server"
"""The run's nats-server, as a target."""
LAUNCHER = "launcher"
"""The process of `areal-actors run` itself, as a target."""
EVERYTHING = "everything"
"""Every process of the run at once, including the launcher and nats-server; the run ends, and can be resumed."""


class FaultRate(Config):
    """One kind of fault."""

    per_minute: NonNegativeFloat = 0.0
    """Average faults per minute while the run is healthy, with exponential intervals. 0 for none."""
    count: NonNegativeInt = 0
    """Maximum number in the whole run, including after it is resumed; 0 sets no limit."""
    targets: tuple[str, ...] = ()
    """Each fault chooses one at random. Processes as listed by `areal-actors check`; `inference_worker` means all of
    that kind. Empty for every process of the run."""


class KillFaults(FaultRate):
    """`[chaos.kill]`: SIGKILL. Targets are processes, `server`, `launcher` and `everything`."""


class PauseFaults(FaultRate):
    """`[chaos.pause]`: SIGSTOP, and SIGCONT later. Targets are processes, `server` and `launcher`."""

    seconds: PositiveFloat = 5.0
    """Duration of a pause. Beyond `watchdog.heartbeat_seconds` a paused process counts as dead."""


class PartitionFaults(FaultRate):
    """`[chaos.partition]`: a process and the bus cannot reach each other; nothing is refused or delivered.

    Targets are processes.
    """

    seconds: PositiveFloat = 5.0
    """Duration of a partition."""


class FlipFaults(FaultRate):
    """`[chaos.flip]`: flips one bit of a file. Targets are `checkpoint` and `log`.

    `checkpoint`: in a file of the newest checkpoint; the trainer is killed, so that it has to load it. `log`: in the
    store of nats-server after it was killed; everything else is killed, too, and the run can be resumed.
    """

    targets: tuple[str, ...] = ("checkpoint",)


class SlowDiskFaults(FaultRate):
    """`[chaos.slow_disk]`: pauses nats-server in bursts, as if disk writes were slow. No targets."""

    targets: tuple[str, ...] = (SERVER,)
    seconds: PositiveFloat = 10.0
    """Duration of the fault."""
    hold_seconds: PositiveFloat = 0.3
    """Duration of one write; a tenth of a second passes between two."""


class BadCompletionFaults(FaultRate):
    """`[chaos.bad_completion]`: corrupts an inference worker's next completion.

    Targets are kinds of corruption; empty for all.
    """


class ChaosSettings(Config):
    """`[chaos]`: see docs/chaos.md."""

    enabled: bool = False
    """If false, nothing is injected, whatever the rates are."""
    seed: NonNegativeInt = 0
    """Seed of times, targets and bytes, independent of the run's seed."""
    after_steps: PositiveInt = 1
    """Steps that the run completes before the first fault."""
    one_at_a_time: bool = True
    """Delay the next fault until every actor serves and a step was trained on a batch formed after the last fault."""
    kill: KillFaults = KillFaults()
    pause: PauseFaults = PauseFaults()
    partition: PartitionFaults = PartitionFaults()
    flip: FlipFaults = FlipFaults()
    slow_disk: SlowDiskFaults = SlowDiskFaults()
    bad_completion: BadCompletionFaults = BadCompletionFaults()

    def rates(self) -> Mapping[Kind, FaultRate]:
        """Returns the faults to inject; empty unless enabled."""
        if not self.enabled:
            return {}
        every: dict[Kind, FaultRate] = {kind: getattr(self, kind) for kind in get_args(Kind)}
        return {kind: rate for kind, rate in every.items() if rate.per_minute > 0}

    def injects(self, kind: Kind) -> bool:
        """Returns True if there are faults of this kind."""
        return kind in self.rates()

    def seconds_of(self, kind: Kind) -> float:
        """Returns the duration of a fault of this kind."""
        return float(getattr(getattr(self, kind), "seconds", 0.0))

    def describe(self) -> str:
        """Returns `kill 2 a minute (trainer, server), pause 1 a minute (any); seed 0`, or empty."""
        parts = []
        for kind, rate in self.rates().items():
            most = f", {rate.count} at most" if rate.count else ""
            seconds = f" for {lasting:g} s" if (lasting := self.seconds_of(kind)) else ""
            parts.append(f"{kind} {rate.per_minute:g} a minute{most}{seconds} ({', '.join(rate.targets) or 'any'})")
        return f"{', '.join(parts)}; seed {self.seed}" if parts else ""
