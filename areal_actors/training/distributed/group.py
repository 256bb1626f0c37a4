"""A `TrainingEngine` of several processes: every rank executes each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from areal_actors.core.errors import ArealError, RankFailed, RanksLost, SetupError
from areal_actors.core.values import TrainingSequence, WeightsLocation
from areal_actors.training.algorithms import Algorithm
from areal_actors.training.distributed.commands import MethodCall, Start
from areal_actors.training.distributed.layout import layout_problem
from areal_actors.training.distributed.rank_processes import RankProcesses
from areal_actors.training.engine import sequence_limits
from areal_actors.training.settings import TrainerSettings


class RankGroup:
    """Ranks in separate processes, each with a `TorchTrainer` of its part of the model.

    If a rank fails, the call fails with an error that names it, and the whole group is ended. The next call restarts
    the group with its initial weights: `load` a checkpoint to continue. `weight_version` is reset at once.
    """

    def __init__(self, model_folder: str, algorithm: Algorithm, settings: TrainerSettings, **arguments: Any) -> None:
        """Start the ranks and have them load the model; all arguments are those of `TorchTrainer`.

        Raises:
            SetupError: the settings give no valid layout of ranks, or the model does not support it.
            EngineError, RanksLost: a rank failed.
        """
        if problem := layout_problem(settings):
            raise SetupError(f"trainer.{problem[0]}: {problem[1]}")
        self.weight_version = 0
        self.limits = sequence_limits(model_folder)
        self._settings = settings
        self._start = Start(
            model_folder=model_folder,
            algorithm=msgspec.json.encode(algorithm),
            settings=msgspec.json.encode(settings),
            arguments=arguments,
        )
        self._processes: RankProcesses | None = None
        self._running()

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty if the group has ended."""
        return self._processes.pids if self._processes else []

    # ------------------------------------------------------------ calls on every rank

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """See `TrainingEngine.step`; also raises RanksLost when a rank fails."""
        return dict(self._call(f"step {self.weight_version}", "step", sequences))

    def evaluate(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """See `TorchTrainer.evaluate`."""
        return dict(self._call("an evaluation", "evaluate", sequences))

    def logp(self, sequences: Sequence[TrainingSequence]) -> Tensor:
        """See `TorchTrainer.logp`."""
        return _float32_tensor(self._call("scoring", "logp", sequences))

    def values(self, sequences: Sequence[TrainingSequence]) -> Tensor:
        """See `TorchTrainer.values`."""
        return _float32_tensor(self._call("computing values", "values", sequences))

    def publish(self, folder: str) -> WeightsLocation:
        """See `TrainingEngine.publish`; the first rank writes."""
        return msgspec.convert(self._call("publishing weights", "publish", folder=folder), WeightsLocation)

    def checksum(self) -> str:
        """See `TrainingEngine.checksum`."""
        return str(self._call("reading the weights", "checksum"))

    def save_model(self, folder: str) -> None:
        """See `TorchTrainer.save_model`."""
        self._call("writing the model", "save_model", folder=folder)

    def save(self, folder: str) -> None:
        """See `TrainingEngine.save`."""
        self._call("writing a checkpoint", "save", folder=folder)

    def load(self, folder: str) -> None:
        """See `TrainingEngine.load`."""
        self._call("reading a checkpoint", "load", folder=folder)

    def close(self) -> None:
        """End the ranks."""
        if self._processes is not None:
            self._processes.end()
            self._processes = None

    # ------------------------------------------------------------ processes

    def _running(self) -> RankProcesses:
        """Returns the rank processes; restarts a group that has ended."""
        if self._processes is not None:
            return self._processes
        settings = self._settings
        processes = RankProcesses(settings.ranks, settings.ranks_address, settings.rank_timeout_seconds)
        try:
            processes.call(self._start, "loading the model", settings.rank_timeout_seconds)
        except BaseException:
            processes.end()
            raise
        self._processes = processes
        return processes

    def _call(
        self, what: str, method: str, sequences: Sequence[TrainingSequence] | None = None, folder: str | None = None
    ) -> Any:
        """Call a method on all ranks; returns the value of the first."""
        processes = self._running()
        command = MethodCall(method=method, sequences=None if sequences is None else list(sequences), folder=folder)
        try:
            first = processes.call(command, what, self._settings.rank_timeout_seconds)
        except ArealError as error:
            if not processes.ended:
                raise
            self._processes = None
            self.weight_version = 0
            kind = RankFailed if isinstance(error, RankFailed) else RanksLost
            raise kind(f"{error}\nThe other ranks were ended; the group restarts with its initial weights") from error
        self.weight_version = first.weight_version
        return first.value


def _float32_tensor(body: bytes) -> Tensor:
    """Decodes a float32 tensor on the CPU."""
    return torch.frombuffer(bytearray(body), dtype=torch.float32)
