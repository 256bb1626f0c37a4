"""The schema of a recipe: one TOML file decodes into this tree, table by table.

A table is defined in the module that uses it, and decodes into the object used there; nothing is declared twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from areal_actors.batching.assembler import BatcherConfig
from areal_actors.chaos.settings import ChaosSettings
from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.autopilot_settings import AutopilotSettings
from areal_actors.core.autoscale_settings import AutoscaleSettings
from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.config import Config, PositiveInt
from areal_actors.core.errors import SetupError
from areal_actors.core.host_settings import HostsSettings
from areal_actors.core.policy_settings import PolicyName, PolicyRole, PolicySettings
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import SamplingParams
from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.embedded.settings import WarmStart
from areal_actors.evaluation.evaluator import EvaluationConfig
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.settings import GenerationSettings
from areal_actors.recipe.run_actors import (
    NOT_IN_ENVIRONMENTS,
    NOT_ONLINE,
    NOT_WITH_EXAMPLES,
    ONLINE,
    ONLY_WITH_EXAMPLES,
)
from areal_actors.recipe.run_settings import DiskSettings, LogSettings, SupervisorSettings, TrackSettings
from areal_actors.staleness.ledger import StalenessGateConfig
from areal_actors.training.algorithms import AnyAlgorithm, Grpo
from areal_actors.training.algorithms.base import ExampleKind
from areal_actors.training.checkpointer import CheckpointConfig
from areal_actors.training.settings import TrainerSettings
from areal_bus.users import without_credentials

RunName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=64)]


def default_tree() -> dict[str, SupervisorSettings]:
    """Returns the default supervisors.

    A subtree that still fails after it was restarted as a whole ends the run. Actors restart one for one: their state
    is rebuilt from the log, and their work in flight is redelivered. A trainer replays the steps since the last
    checkpoint, which may take long: it is allowed fewer restarts.
    """
    return {
        "run": SupervisorSettings(children=("control", "learner", "rollouts"), max_restarts=1, window_seconds=300.0),
        "control": SupervisorSettings(
            children=(
                "metrics",
                "checkpointer",
                "evaluator",
                "batcher",
                "example_source",
                "task_source",
                "staleness_gate",
            )
        ),
        "learner": SupervisorSettings(children=("trainer",), max_restarts=2, window_seconds=600.0),
        "rollouts": SupervisorSettings(
            children=("inference_worker", "session_manager", "reward_worker", "rollout_worker")
        ),
    }


class Recipe(Config):
    """All settings of a run. `profile` and `[profiles]` are resolved while it is read."""

    run: RunName
    """Name of the run on the bus and of its folder: lowercase letters, digits and hyphens."""
    seed: int = 0
    """Seed of all random choices: order of tasks, sampling, initial weights of the embedded model."""
    steps: PositiveInt
    """Optimizer steps."""
    model: str
    """`embedded` (made here in minutes), a Hugging Face hub id, or a local folder."""
    folder: str = "runs"
    """Folder of all runs: this one is written to `<folder>/<run>`."""
    record_actor_io: bool = False
    """Record the input and output messages of every actor, for replay."""
    task: TaskSettings
    sampling: SamplingParams = SamplingParams()
    algorithm: AnyAlgorithm = Grpo()
    staleness_gate: StalenessGateConfig = StalenessGateConfig()
    batcher: BatcherConfig = BatcherConfig()
    trainer: TrainerSettings = TrainerSettings()
    generation: GenerationSettings = GenerationSettings()
    warm_start: WarmStart = WarmStart()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    gateway: GatewaySettings = GatewaySettings()
    bus: BusSettings = BusSettings()
    log: LogSettings = LogSettings()
    watchdog: WatchdogSettings = WatchdogSettings()
    disk: DiskSettings = DiskSettings()
    track: TrackSettings = TrackSettings()
    supervisors: dict[str, SupervisorSettings] = msgspec.field(default_factory=default_tree)
    """Supervision tree by supervisor: `restart`, `children`, `max_restarts` within `window_seconds`
    (docs/architecture.md)."""
    actors: ActorsSettings = ActorsSettings()
    chaos: ChaosSettings = ChaosSettings()
    hosts: HostsSettings = HostsSettings()
    autoscale: AutoscaleSettings = AutoscaleSettings()
    autopilot: AutopilotSettings = AutopilotSettings()
    policies: dict[PolicyName, PolicySettings] = {}
    """Further policies, which agents call by name (docs/policies.md)."""
    policy: PolicyRole | None = None

    def is_online(self) -> bool:
        """Returns True if external agents connect to the gateway."""
        return self.task.agent == ONLINE

    def takes_feedback(self) -> bool:
        """Returns True if its gateway takes feedback on sessions, which external agents start."""
        return (self.is_served() or self.is_online()) and self.policy is None and not self.policies

    def has_candidate(self) -> bool:
        """Returns True if a second set of weights answers a share of the sessions of its served model."""
        return bool(self.gateway.candidate.model) and self.is_served() and self.takes_feedback()

    def plays_environment(self) -> bool:
        """Returns True if an environment brings the tasks, the agents and the rewards."""
        return bool(self.task.environment) and not self.learns_from_examples()

    def learns_from_examples(self) -> bool:
        """Returns True if it has no episodes, and so neither agents nor a gateway."""
        return self.algorithm.learns_from == "examples"

    def examples(self) -> ExampleKind:
        """Returns the kind of its examples."""
        return self.algorithm.example_kind

    def absent(self) -> frozenset[str]:
        """Returns the actors that such a run does not have."""
        if self.learns_from_examples():
            return NOT_WITH_EXAMPLES
        without = (
            NOT_ONLINE if self.is_online() else NOT_IN_ENVIRONMENTS if self.plays_environment() else frozenset[str]()
        )
        return without | ONLY_WITH_EXAMPLES

    def is_served(self) -> bool:
        """Returns True if it serves a model without a trainer."""
        return self.actors.trainer.count == 0

    def concurrent_groups(self) -> int:
        """Returns the number of groups that run at once at most."""
        return self.staleness_gate.most_concurrent(self.trainer.batch_size)

    def shares_engine(self) -> bool:
        """Returns True for a run of a policy that is sampled by the servers of the run that calls it."""
        return self.policy is not None and self.policy.settings.shares_engine()

    def has_shared_engine(self) -> bool:
        """Returns True if other policies are sampled by the servers of this run."""
        return any(policy.shares_engine() for policy in self.policies.values())

    def engine_settings(self) -> GenerationSettings:
        """Returns `[generation]` for inference workers.

        Synchronous training is reproducible only with batch-invariant engines.
        """
        if self.generation.batch_invariant != "auto":
            return self.generation
        return msgspec.structs.replace(
            self.generation, batch_invariant="on" if self.staleness_gate.max_staleness == 0 else "off"
        )


def redact_recipe(recipe: Recipe) -> dict[str, Any]:
    """Returns the recipe for the log and monitors, without keys and passwords."""
    data: dict[str, Any] = msgspec.to_builtins(recipe)
    data["bus"] = {
        name: without_credentials(value) if isinstance(value, str) else value for name, value in data["bus"].items()
    }
    data["gateway"]["admin_key"] = ""
    return data


def recorded_recipe(data: Mapping[str, Any]) -> Recipe:
    """Returns the recipe that a log has, without keys and passwords.

    Raises:
        SetupError: another version wrote it.
    """
    try:
        return msgspec.convert(data, Recipe, str_keys=True)
    except msgspec.ValidationError as error:
        raise SetupError(
            f"the recipe in the log of this run was written by another version of areal-actors: {error}"
        ) from error
