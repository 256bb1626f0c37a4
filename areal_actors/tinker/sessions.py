"""A client's session, and what belongs to it: models and samplers in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from areal_actors.core.values import WeightsLocation
from areal_actors.tinker.checkpoints import TrainingRunRecord
from areal_actors.tinker.futures import RequestOrder
from areal_actors.tinker.requests import CreateSession
from areal_actors.tinker.training_model import TrainingModel


@dataclass
class TinkerSession:
    """A client program."""

    session_id: str
    request: CreateSession
    last_request: float
    models: dict[str, LoadedModel] = field(default_factory=dict)
    samplers: dict[str, SamplingSession] = field(default_factory=dict)
    """In order of creation."""


@dataclass
class LoadedModel:
    """A model in memory; its requests run in order."""

    run: TrainingRunRecord
    order: RequestOrder = field(default_factory=RequestOrder)
    training: TrainingModel | None = None
    """None until it is loaded."""


@dataclass
class SamplingSession:
    """Weights that a client samples from."""

    weights: WeightsLocation
    model_path: str | None
    temporary: bool
    clients: int = 1
    """Clients that share it: the first one, and those that joined."""

    def is_removed(self) -> bool:
        """True if its checkpoint was overwritten or deleted."""
        return self.model_path is not None and not Path(self.weights.folder).is_dir()
