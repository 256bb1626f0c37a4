"""Messages about the load of a run, from which the number of its workers and the limits of its gate follow."""

from __future__ import annotations

from typing import ClassVar, Literal

from areal_actors.core.values import Value
from areal_bus.message import Event


class RoleLoad(Value):
    """Mean load of all workers of a role over a window."""

    workers: int
    """Number of workers that serve."""
    slots: int
    """Episodes, completions or scores that they take at once, together."""
    busy: float
    """Slots in use."""
    waiting: float
    """Work that waits for a slot."""
    cpu: float = 0.0
    """CPU cores that the busiest process of the role uses."""
    cpu_waits: float = 0.0
    """Share of the window for which the main thread of such a process was ready to run and had no core, the longest."""


class LoadMeasured(Event):
    """Load of the run over a window in which its workers stayed the same, between the first and the last batch."""

    subject: ClassVar[str] = "load.measured"
    seconds: float
    """Length of the window."""
    trainer_waits: float
    """Share of the window in which the trainer waited for a batch."""
    episodes: float
    """Mean number of episodes that may run and are not scored."""
    allowed: int
    """Number of episodes that the staleness gate lets run at once."""
    roles: dict[str, RoleLoad]
    """Load by role: `rollout_worker`, `inference_worker`, `reward_worker`."""
    gateway_cpu: float = 0.0
    """CPU cores that the gateway uses."""
    engine_full: bool = False
    """True if an engine was full at the end of the window (`EngineLoad`)."""
    publishes: float = 0.0
    """Share of the window between a step and the publication of its weights."""
    bounds: dict[str, float] = {}
    """Shares of the trainer's waiting time by the bound that the staleness gate had reached."""
    processes: dict[str, float] = {}
    """CPU cores that each process of the run uses, by its name."""
    run_cpu: float = 0.0
    """CPU cores that all processes of the run on the supervisor's machine use, those of agents and of the bus too."""
    machine_cpu: float = 0.0
    """CPU cores of that machine that are in use, of `cores`."""
    calls: float = 0.0
    """Mean number of model calls at the gateway, those included that wait for a slot of an engine."""
    cores: int = 0
    """CPU cores that the run may use there; 0 if unknown."""


class ScaleDecided(Event):
    """A role is to have another number of workers (`[autoscale]`)."""

    subject: ClassVar[str] = "scale.decided"
    role: str
    """`rollout_worker`, `inference_worker` or `reward_worker`."""
    before: int
    """Workers that served."""
    workers: int
    """Workers that are to serve."""
    reason: str


class LimitDecided(Event):
    """The staleness gate is to work with another limit (`[autopilot]`)."""

    subject: ClassVar[str] = "limit.decided"
    setting: Literal["max_staleness", "max_concurrent"]
    """Setting of `[staleness_gate]`, which stays its highest value."""
    before: int
    """Limit until now."""
    value: int
    """Limit from now on."""
    reason: str
    most_gain: float = 0.0
    """Share of the time that the limit held back new groups while the trainer waited: more cannot be gained. 0 for a
    change that is taken back."""
