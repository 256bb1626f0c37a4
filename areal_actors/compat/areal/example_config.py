"""Configuration classes of AReaL's programs that train on examples: demonstrations, and pairs of answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from areal_actors.compat.areal.config import BaseExperimentConfig, TrainEngineConfig
from areal_actors.core.errors import RecipeError


@dataclass
class DPOEngineConfig(TrainEngineConfig):
    """`actor` and `ref` of a DPO program."""

    beta: float = 0.1
    loss_type: str = "sigmoid"


@dataclass
class SFTConfig(BaseExperimentConfig):
    """Supervised fine-tuning on demonstrations."""

    actor: TrainEngineConfig = field(default_factory=TrainEngineConfig)


@dataclass
class RWConfig(BaseExperimentConfig):
    """A reward model from pairs of answers."""

    actor: TrainEngineConfig = field(default_factory=TrainEngineConfig)

    def __post_init__(self) -> None:
        """Complete the settings that follow from others.

        Raises:
            RecipeError: the model has no scalar head.
        """
        super().__post_init__()
        if not self.actor.is_critic:
            raise RecipeError("`actor.is_critic`: found false, but a reward model has a scalar head; write true")


@dataclass
class DPOConfig(BaseExperimentConfig):
    """Direct preference optimization on pairs of answers."""

    actor: DPOEngineConfig = field(default_factory=DPOEngineConfig)
    ref: DPOEngineConfig = field(default_factory=DPOEngineConfig)
