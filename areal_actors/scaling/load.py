"""The load of a run: a fold over its events, its heartbeats, and the time.

It is measured between the first and the last batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from areal_actors.core.gateways import without_mark
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    AgentReturned,
    BatchFormed,
    CapacityGranted,
    EngineLoad,
    EpisodeAbandoned,
    EpisodeScored,
    Heartbeat,
    LoadMeasured,
    RoleLoad,
    StepCompleted,
    WeightsPublished,
    WorkerLeft,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL
from areal_actors.rollout.runners import episodes_at_once
from areal_actors.scaling.balance import ROLES
from areal_actors.scaling.machine_usage import CoresInUse, MachineUsage
from areal_bus.message import Message

GATEWAY, GATE = "session_manager", "staleness_gate"
LEAST_SECONDS = 1.0
"""A window that ends with the last batch is reported from this length on."""


def slots_of(recipe: Recipe) -> dict[str, int]:
    """Returns what one worker of each role of a run takes at once.

    A reward function runs in one process of its worker.
    """
    actors, task = recipe.actors, recipe.task
    together = task.reward.startswith(MODEL)
    slots = {
        "reward_worker": actors.reward_worker.concurrency if together else 1,
        "inference_worker": min(actors.inference_worker.concurrency, recipe.generation.max_num_seqs),
        "rollout_worker": episodes_at_once(task, actors.rollout_worker.concurrency),
    }
    return {role: slots[role] for role in ROLES if role not in recipe.absent()}


@dataclass
class _Worker:
    """A worker, by its last heartbeat."""

    role: str
    handling: int = 0
    cpu_seconds: float = 0.0
    cpu_before: float | None = None
    """CPU time at the beginning of the window; None before its first heartbeat."""
    waited: float = 0.0
    """Time for which it was ready to run and had no core."""
    waited_before: float = 0.0

    def cpu(self, seconds: float) -> float:
        """Returns the CPU cores that its process used in these seconds."""
        return (self.cpu_seconds - self.cpu_before) / seconds if self.cpu_before is not None else 0.0


@dataclass
class LoadFold:
    """Receives every event and heartbeat of a run, and a tick about once a second."""

    slots: Mapping[str, int]
    """Slots of one worker, by role."""
    allowed: int
    group_size: int
    steps: int
    window_seconds: float
    running: set[str] = field(default_factory=set)
    """Episodes that were granted and are neither scored nor given up."""
    returned: set[str] = field(default_factory=set)
    """Those whose agent has returned text to be scored."""
    workers: dict[str, _Worker] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    """Inference workers with a full engine."""

    def __post_init__(self) -> None:
        self._formed = 0
        self._waits, self._publishes = True, False
        self._bound = ""
        """Bound that the staleness gate has reached, by its last heartbeat."""
        self._processes: dict[str, tuple[float, float]] = {}
        """CPU time of each process at the beginning of the window, and by its last heartbeat."""
        self._machine_before: MachineUsage | None = None
        self._until: float | None = None
        """Time up to which the window is counted; None outside of one."""
        self._clear()

    def _clear(self) -> None:
        """Begin another window."""
        self._seconds = self._waited = self._published = self._episodes = 0.0
        self._calls = 0.0
        self._bounds: dict[str, float] = {}
        self._processes = {name: (now, now) for name, (_, now) in self._processes.items()}
        self._machine_before = None
        self._busy = dict.fromkeys(self.slots, 0.0)
        self._waiting = dict.fromkeys(self.slots, 0.0)
        for worker in self.workers.values():
            worker.cpu_before, worker.waited_before = worker.cpu_seconds or None, worker.waited

    def receive(self, message: Message) -> None:
        """Fold a message."""
        match message:
            case Heartbeat():
                self._beat(message)
            case BatchFormed():
                self._formed, self._waits = max(self._formed, message.step + 1), False
            case StepCompleted():
                self._publishes = True
            case WeightsPublished():
                self._waits, self._publishes = self._formed <= message.weight_version, False
            case EngineLoad():
                (self.full.add if message.level == "full" else self.full.discard)(message.worker)
            case ActorStarted():
                self._add_worker(message.actor)
            case ActorStopped(actor=actor) | ActorFailed(actor=actor) | WorkerLeft(worker=actor):
                self._remove_worker(actor)
            case _:
                self._of_an_episode(message)

    def _of_an_episode(self, message: Message) -> None:
        match message:
            case CapacityGranted():
                numbers = range(message.first_group, message.first_group + message.groups)
                self.running.update(f"{number}.{member}" for number in numbers for member in range(self.group_size))
            case AgentReturned():
                if (episode := without_mark(message.session).rsplit("-", 2)[0]) in self.running:
                    self.returned.add(episode)
            case EpisodeScored():
                self.running.discard(message.work.episode)
                self.returned.discard(message.work.episode)
            case EpisodeAbandoned():
                self.returned.discard(message.work.episode)
                if not message.work.attempts_left:
                    self.running.discard(message.work.episode)

    def tick(
        self, now: float, measure_machine: Callable[[], MachineUsage | None] = lambda: None
    ) -> LoadMeasured | None:
        """Count the time since the last tick; returns the load once a window is over.

        Args:
            now: seconds of any clock.
            measure_machine: returns the CPU time of the machine, None if it is unknown; called at both ends of a
                window.
        """
        last_is_formed = self._formed >= self.steps
        if not self._formed or (last_is_formed and self._until is None):
            return None
        if self._until is None:
            self._clear()  # CPU time before the first batch is not of the window
        elif not last_is_formed:  # the end of the run, which waits for nothing, is not of the window
            self._count(now - self._until)
        self._machine_before = self._machine_before or measure_machine()
        self._until = None if last_is_formed else now
        if self._seconds < (LEAST_SECONDS if last_is_formed else self.window_seconds):
            return None
        usage = measure_machine()
        measured = self._measure(usage)
        self._clear()
        self._machine_before = usage
        return measured

    def _count(self, seconds: float) -> None:
        self._seconds += seconds
        self._waited += seconds * self._waits
        self._published += seconds * (self._publishes and not self._waits)
        if self._waits and self._bound:
            self._bounds[self._bound] = self._bounds.get(self._bound, 0.0) + seconds
        self._episodes += seconds * len(self.running)
        calls = sum(worker.handling for worker in self._of(GATEWAY))
        self._calls += seconds * calls
        busy = {role: self._busy_slots(role) for role in self.slots}
        handled = {role: sum(worker.handling for worker in self._of(role)) for role in self.slots}
        queued = {
            "reward_worker": len(self.returned) - busy.get("reward_worker", 0),
            "inference_worker": max(calls, handled.get("inference_worker", 0)) - busy.get("inference_worker", 0),
            "rollout_worker": len(self.running) - len(self.returned) - busy.get("rollout_worker", 0),
        }
        for role, slots in self.slots.items():
            self._busy[role] += seconds * busy[role]
            total = slots * len(self._of(role))  # with a free slot, work is on its way to it
            self._waiting[role] += seconds * max(queued[role] + busy[role] - total, 0)

    def _measure(self, usage: MachineUsage | None) -> LoadMeasured:
        seconds, held = self._seconds, sum(self._bounds.values())
        machine = usage.since(self._machine_before, seconds) if usage and self._machine_before else CoresInUse()
        roles = {}
        for role, slots in self.slots.items():
            workers = self._of(role)
            roles[role] = RoleLoad(
                workers=len(workers),
                slots=slots * len(workers),
                busy=round(self._busy[role] / seconds, 3),
                waiting=round(self._waiting[role] / seconds, 3),
                cpu=round(max((worker.cpu(seconds) for worker in workers), default=0.0), 3),
                cpu_waits=round(
                    max((worker.waited - worker.waited_before for worker in workers), default=0) / seconds, 3
                ),
            )
        return LoadMeasured(
            seconds=round(seconds, 3),
            trainer_waits=round(self._waited / seconds, 4),
            episodes=round(self._episodes / seconds, 3),
            allowed=self.allowed,
            roles=roles,
            gateway_cpu=round(max((worker.cpu(seconds) for worker in self._of(GATEWAY)), default=0.0), 3),
            engine_full=bool(self.full),
            publishes=round(self._published / seconds, 4),
            bounds={bound: round(spent / held, 4) for bound, spent in self._bounds.items()},
            calls=round(self._calls / seconds, 3),
            processes={name: round((now - before) / seconds, 3) for name, (before, now) in self._processes.items()},
            run_cpu=machine.run_cpu,
            machine_cpu=machine.machine_cpu,
            cores=machine.cores,
        )

    def _of(self, role: str) -> list[_Worker]:
        return [worker for worker in self.workers.values() if worker.role == role]

    def _busy_slots(self, role: str) -> int:
        return sum(min(worker.handling, self.slots[role]) for worker in self._of(role))

    def _beat(self, beat: Heartbeat) -> None:
        before, _ = self._processes.get(beat.process, (beat.cpu_seconds, 0.0))
        self._processes[beat.process] = min(before, beat.cpu_seconds), beat.cpu_seconds
        if beat.actor.startswith(GATE):
            self._bound = str(beat.status.get("bound", ""))
        if (worker := self.workers.get(beat.actor)) is not None:
            worker.handling = sum(count for kind, count in beat.handling.items() if kind in HANDLED)
            worker.cpu_seconds = beat.cpu_seconds
            worker.waited = beat.cpu_wait_seconds
            if worker.cpu_before is None:
                worker.cpu_before, worker.waited_before = beat.cpu_seconds, beat.cpu_wait_seconds

    def _add_worker(self, actor: str) -> None:
        role = actor.rpartition("-")[0]
        if role in self.slots or role == GATEWAY:
            self.workers[actor] = _Worker(role)
            self._clear()

    def _remove_worker(self, actor: str) -> None:
        self.full.discard(actor)
        if self.workers.pop(actor, None) is not None:
            self._clear()


HANDLED = frozenset({"RunEpisode", "ModelRequest", "Generate", "ScoreEpisode"})
"""Types of messages that take a slot; held-out episodes have slots of their own."""


def load_fold(recipe: Recipe, window_seconds: float) -> LoadFold:
    """Returns the fold for a run of this recipe."""
    size = recipe.algorithm.group_size
    return LoadFold(slots_of(recipe), recipe.concurrent_groups() * size, size, recipe.steps, window_seconds)
