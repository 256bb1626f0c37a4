"""The recipe's `[chaos]`: which faults are injected into the run, and how often. Off unless the recipe turns it on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from areal_actors.config import Config, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Kind = Literal["kill", "pause", "partition", "flip", "slow_disk", "bad_completion"]

SERVER = "server"
"""The run's nats-server, as a target."""
LAUNCHER = "launcher"
"""The process of `areal run` itself."""
EVERYTHING = "everything"
"""Every process of the run at once, the launcher and nats-server among them; the run is over, for `areal resume`."""


class FaultRate(Config):
    """One kind of fault."""

    per_minute: NonNegativeFloat = 0.0
    """How many, on average, while the run is healthy; the times between them are exponential. 0 for none."""
    count: NonNegativeInt = 0
    """At most this number in the whole run, its resumed lives included; 0 sets no limit."""
    targets: tuple[str, ...] = ()
    """Each fault takes one of them at random. Processes as `areal check` lists them; `inference_worker` stands for all of that kind.
    Empty for every process of the run."""


class KillFaults(FaultRate):
    """`[chaos.kill]`: SIGKILL. Targets are processes, `server`, `launcher` and `everything`."""


class PauseFaults(FaultRate):
    """`[chaos.pause]`: SIGSTOP, and SIGCONT later. Targets are processes, `server` and `launcher`."""

    seconds: PositiveFloat = 5.0
    """Beyond `watchdog.heartbeat_seconds` a paused process is taken for dead."""


class PartitionFaults(FaultRate):
    """`[chaos.partition]`: a process and the bus cannot reach each other; nothing is refused, nothing arrives. Targets are processes."""

    seconds: PositiveFloat = 5.0


class FlipFaults(FaultRate):
    """`[chaos.flip]`: one bit of a file is another. Targets are `checkpoint` and `log`.

    `checkpoint`: in a file of the newest checkpoint, and the trainer is killed, which has to load it. `log`: in the store of
    nats-server after it was killed; everything else is killed, too, and the run is over, for `areal resume`.
    """

    targets: tuple[str, ...] = ("checkpoint",)


class SlowDiskFaults(FaultRate):
    """`[chaos.slow_disk]`: the server that keeps the log is held back in bursts, as by a disk whose writes take long. No targets."""

    targets: tuple[str, ...] = (SERVER,)
    seconds: PositiveFloat = 10.0
    hold_seconds: PositiveFloat = 0.3
    """How long one write takes; between two of them lies a tenth of a second."""


class BadCompletionFaults(FaultRate):
    """`[chaos.bad_completion]`: an inference worker's next completion is spoilt. Targets are ways to spoil; empty for all."""


class ChaosSettings(Config):
    """`[chaos]`: see docs/chaos.md."""

    enabled: bool = False
    """Nothing is injected without it, whatever the rates are."""
    seed: NonNegativeInt = 0
    """Of times, targets and bytes; the schedule does not depend on the run's seed."""
    after_steps: PositiveInt = 1
    """Steps that the run completes before the first fault."""
    one_at_a_time: bool = True
    """Wait with the next fault until every actor serves again and a step was trained on a batch that was formed after the last one."""
    kill: KillFaults = KillFaults()
    pause: PauseFaults = PauseFaults()
    partition: PartitionFaults = PartitionFaults()
    flip: FlipFaults = FlipFaults()
    slow_disk: SlowDiskFaults = SlowDiskFaults()
    bad_completion: BadCompletionFaults = BadCompletionFaults()

    def rates(self) -> Mapping[Kind, FaultRate]:
        """What is injected; nothing unless it is enabled."""
        if not self.enabled:
            return {}
        every: dict[Kind, FaultRate] = {
            "kill": self.kill,
            "pause": self.pause,
            "partition": self.partition,
            "flip": self.flip,
            "slow_disk": self.slow_disk,
            "bad_completion": self.bad_completion,
        }
        return {kind: rate for kind, rate in every.items() if rate.per_minute > 0}

    def injects(self, kind: Kind) -> bool:
        """Whether there are faults of this kind."""
        return kind in self.rates()

    def seconds_of(self, kind: Kind) -> float:
        """How long a fault of this kind lasts."""
        return {"pause": self.pause.seconds, "partition": self.partition.seconds, "slow_disk": self.slow_disk.seconds}.get(kind, 0.0)

    def described(self) -> str:
        """`kill 2 a minute (trainer, server), pause 1 a minute (any process); seed 0`, or empty."""
        parts = []
        for kind, rate in self.rates().items():
            most = f", {rate.count} at most" if rate.count else ""
            seconds = f" for {lasting:g} s" if (lasting := self.seconds_of(kind)) else ""
            parts.append(f"{kind} {rate.per_minute:g} a minute{most}{seconds} ({', '.join(rate.targets) or 'any'})")
        return f"{', '.join(parts)}; seed {self.seed}" if parts else ""
