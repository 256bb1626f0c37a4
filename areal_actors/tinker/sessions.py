"""Sessions of clients, and what belongs to them: models and samplers in memory."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from areal_actors.core.errors import RequestError
from areal_actors.core.values import WeightsLocation
from areal_actors.tinker.checkpoints import TrainingRunRecord
from areal_actors.tinker.futures import RequestOrder
from areal_actors.tinker.requests import CreateSession
from areal_actors.tinker.training_model import TrainingModel

SESSION_SECONDS = 600.0
"""Silence after which a session ends; clients send a heartbeat every ten seconds."""
SWEEP_SECONDS = 30.0
TEMPORARY_SAMPLERS = 16
"""Samplers of temporary weights that a session keeps; the oldest one is dropped for another."""


@dataclass
class TinkerSession:
    """A client program."""

    session_id: str
    request: CreateSession
    last_request: float
    models: dict[str, LoadedModel] = field(default_factory=dict)
    samplers: dict[str, SamplingSession] = field(default_factory=dict)
    """In order of creation."""

    def keep_temporary(self, sampler_id: str, weights: WeightsLocation) -> None:
        """Add a sampler of temporary weights, in place of one of this id, and drop the oldest beyond the limit."""
        if sampler_id in self.samplers:
            self.samplers.pop(sampler_id).drop()
        self.samplers[sampler_id] = SamplingSession(weights, None, temporary=True)
        kept = [sampler for sampler in self.samplers.items() if sampler[1].temporary]
        for name, sampler in kept[:-TEMPORARY_SAMPLERS]:
            del self.samplers[name]
            sampler.drop()


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

    def drop(self) -> None:
        """Remove temporary weights; those of a checkpoint stay."""
        if self.temporary:
            shutil.rmtree(self.weights.folder, ignore_errors=True)


class TinkerSessions:
    """Sessions by id; ids of models and samplers begin with that of their session."""

    def __init__(self) -> None:
        self._sessions: dict[str, TinkerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def owner_of(self, owned_id: str) -> TinkerSession:
        """Returns the session of a model or sampler, which exists."""
        return self._sessions[owned_id.partition(":")[0]]

    def create(self, request: CreateSession) -> str:
        """Returns the id of a new session."""
        session_id = str(uuid4())
        self._sessions[session_id] = TinkerSession(session_id, request, time.monotonic())
        return session_id

    def session(self, session_id: str) -> TinkerSession:
        """Returns a session, and notes that its client is alive.

        Raises:
            RequestError: there is none, or it has ended.
        """
        if session_id not in self._sessions:
            raise RequestError(
                f"there is no session '{session_id}': it ended, or the server was restarted", "session_id", "gone"
            )
        session = self._sessions[session_id]
        session.last_request = time.monotonic()
        return session

    def finish(self, session_id: str) -> None:
        """End a session: drop its models and samplers."""
        session = self._sessions.pop(session_id, None)
        for sampler in session.samplers.values() if session else ():
            sampler.drop()

    async def sweep(self) -> None:
        """End silent sessions, forever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for session in [
                open_session
                for open_session in self._sessions.values()
                if now - open_session.last_request > SESSION_SECONDS
            ]:
                self.finish(session.session_id)

    def model(self, model_id: str) -> LoadedModel:
        """Returns a model, and notes that its client is alive.

        Raises:
            RequestError: there is none, or its session has ended.
        """
        session = self._sessions.get(model_id.partition(":")[0])
        if session is None or model_id not in session.models:
            raise RequestError(
                f"there is no model '{model_id}': its session ended, or the server was restarted",
                "model_id",
                "not_found",
            )
        session.last_request = time.monotonic()
        return session.models[model_id]

    def sampler(self, sampler_id: str) -> SamplingSession:
        """Returns a sampler, and notes that its client is alive.

        Raises:
            RequestError: there is none, or its session has ended.
        """
        session = self._sessions.get(sampler_id.partition(":")[0])
        if session is None or sampler_id not in session.samplers:
            raise RequestError(
                f"there is no sampler '{sampler_id}': its session ended, or {TEMPORARY_SAMPLERS} newer ones of"
                " temporary weights were made",
                "sampling_session_id",
                "not_found",
            )
        session.last_request = time.monotonic()
        return session.samplers[sampler_id]
