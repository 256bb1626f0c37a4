"""The train controller of a hand-written loop: takes batches, returns metrics and weights.

The engine is that of a run's trainer: the same recipe, seed and batches give the same weights, bit-identical on a CPU
(`upload_weights` returns their checksum, as in the log of a run).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import torch.distributed
from torch import Tensor

from areal_actors.core.errors import EngineError, RolloutError
from areal_actors.core.values import TrainingSequence
from areal_actors.folder.run_folder import RunFolder
from areal_actors.library.controllers.batch import RolloutBatch, Trajectories, batch_sequences
from areal_actors.messages import WeightsPublished
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.recipe_model import model_of
from areal_actors.processes.training_engine import EngineBuilder
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.step_metrics import batch_metrics
from areal_actors.training.engine_mismatch import reported_metrics
from areal_actors.training.optimization import learning_rate
from areal_actors.training.ranks import Ranks
from areal_actors.training.step import StepData
from areal_actors.training.torch_trainer import TorchTrainer
from areal_actors.weights.folders import kept_versions, make_secret, prune, remove_all, version_folder, versions_folder
from areal_actors.weights.manifest import MANIFEST, verify, write_manifest

Data = RolloutBatch | Sequence[TrainingSequence]
"""Input of a step: a batch of references, or its sequences."""


class TrainController:
    """Use it in a `with`, or call `close`, which removes uploaded weights but not saved models.

    `tokens` are always the trained tokens of the batch's sequences, concatenated in sequence order.
    """

    def __init__(
        self,
        recipe: Recipe,
        trajectories: Trajectories | None = None,
        *,
        model_folder: str | Path = "",
        ranks: Ranks | None = None,
        weights_folder: str | Path = "",
    ) -> None:
        """Load the model; an embedded one is made first, and cached for loops with the same seed and `[warm_start]`.

        Args:
            recipe: used are `[algorithm]`, `[trainer]`, `steps` (end of the schedule), `seed`, `sampling.temperature`,
                `staleness_gate.max_staleness` and the credit assignment of `[task]`.
            trajectories: source of the trajectories of batches: a `RolloutController`, or a `LogReader`.
            model_folder: a Hugging Face folder that replaces the recipe's model.
            ranks: the group of training processes, each with its own controller; see `join_ranks`.
            weights_folder: folder for `upload_weights` that inference workers can read; by default shared memory,
                for workers on this host.

        Raises:
            SetupError: the model cannot be made or loaded.
        """
        self.recipe = recipe
        self.trajectories = trajectories
        self._credit = Credit.of(recipe.task)
        self._first = ranks is None or ranks.first
        self._folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
        self._weights_folder = weights_folder
        self._model_folder = str(model_folder) or self._model()
        self.engine: TorchTrainer = self._engine(ranks)
        """Or, with `trainer.ranks` above 1, a `RankGroup`, which prepares and updates in one step."""

    def _model(self) -> str:
        """Make or download the model on the first rank; the others then find it."""
        if self._first:
            model = model_of(self.recipe)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        return model if self._first else model_of(self.recipe)

    def _engine(self, ranks: Ranks | None) -> Any:
        recipe = msgspec.structs.replace(self.recipe, model=self._model_folder)
        if ranks is None:
            return EngineBuilder(BuildContext(recipe=recipe, folder=self._folder, instance="trainer-0"))(
                lambda *_: None
            )
        return TorchTrainer(
            self._model_folder,
            recipe.algorithm,
            recipe.trainer,
            total_steps=recipe.steps,
            temperature=recipe.sampling.temperature,
            max_staleness=recipe.staleness_gate.max_staleness,
            seed=recipe.seed,
            ranks=ranks,
        )

    @property
    def weight_version(self) -> int:
        """Number of steps taken."""
        return self.engine.weight_version

    # ------------------------------------------------------------ training

    def train_batch(self, batch: Data) -> dict[str, float]:
        """Run one step: all updates on a batch. Returns metrics, for a `RolloutBatch` with staleness and lengths.

        Raises:
            EngineError: the batch has no trained token, or a reward, the loss or the gradient is not finite.
            LogUnavailable: a trajectory is not at its position in the log.
        """
        sequences = self.sequences(batch)
        metrics = reported_metrics(self.engine.step(sequences))
        return metrics | batch_metrics(sequences, batch.to_event()) if isinstance(batch, RolloutBatch) else metrics

    def eval_batch(self, batch: Data) -> dict[str, float]:
        """Returns loss and metrics of a batch under the present weights, without an update.

        Raises like `train_batch`.
        """
        return self.engine.evaluate(self.sequences(batch))

    def forward(self, batch: Data) -> list[Tensor]:
        """Returns float32 `[tokens of the sequence]` for each sequence's trained tokens.

        They are log-probabilities, or values of a scalar head.
        """
        sequences = self.sequences(batch)
        outputs = (
            self.engine.values(sequences) if self.recipe.algorithm.head == "value" else self.engine.logp(sequences)
        )
        return list(outputs.split_with_sizes([int(sequence.loss_mask[1:].sum()) for sequence in sequences]))

    def compute_logp(self, batch: Data) -> Tensor:
        """Returns log-probabilities, float32 `[tokens]` on the CPU, under the present weights.

        They are at the sampling temperature.
        """
        return self.engine.logp(self.sequences(batch))

    def compute_values(self, batch: Data) -> Tensor:
        """Returns the values of the critic, or of the scalar head, before each token: float32 `[tokens]` on the CPU.

        Raises:
            EngineError: the algorithm has neither.
        """
        return self.engine.values(self.sequences(batch))

    def compute_advantages_and_returns(self, batch: Data) -> StepData:
        """Returns `advantages.tokens`, `advantages.returns` and the other update inputs of a batch.

        They are computed under the present weights.

        Raises:
            EngineError: as for `train_batch`; or the ranks are driven from here, and do not return prepared data.
        """
        if not hasattr(self.engine, "prepare"):
            raise EngineError(
                "compute_advantages_and_returns: the ranks of this group prepare and update in one step; call"
                " train_batch, or start the script with torchrun and pass join_ranks(recipe)"
            )
        return self.engine.prepare(self.sequences(batch))

    def ppo_update(self, prepared: StepData) -> dict[str, float]:
        """Run the updates on prepared data, possibly modified by the loop; preparation plus this is `train_batch`.

        Raises:
            EngineError: the loss or the gradient is not finite.
        """
        return reported_metrics(self.engine.update(prepared))

    def step_lr_scheduler(self) -> float:
        """Returns the learning rate of the next step.

        The schedule follows the steps taken; this call changes nothing.
        """
        return learning_rate(self.recipe.trainer.optimizer, self.weight_version, self.recipe.steps)

    def sequences(self, batch: Data) -> list[TrainingSequence]:
        """Returns the sequences of a batch.

        Raises:
            LogUnavailable: a trajectory is not at its position in the log.
            RolloutError: the controller has no source of trajectories, or the batch is empty.
        """
        if not isinstance(batch, RolloutBatch):
            return list(batch)
        if self.trajectories is None:
            raise RolloutError(
                "a RolloutBatch has only references to its trajectories; construct TrainController(recipe, rollouts) to"
                " fetch them"
            )
        if not batch.groups:
            raise RolloutError(
                "the batch has no group: all its episodes were abandoned; see `abandoned` of the RolloutController"
            )
        return batch_sequences(batch, self.trajectories.trajectories(batch), self._credit, self._folder.path)

    # ------------------------------------------------------------ weights

    def upload_weights(self) -> WeightsPublished:
        """Write the present weights for inference workers; returns the argument of `RolloutController.update_weights`.

        Older versions are kept as far as staleness allows.
        """
        keep = kept_versions(self.recipe.staleness_gate.max_staleness)
        size = sum(path.stat().st_size for path in Path(self._model_folder).glob("*.safetensors"))
        root = self._weights_folder or self._versions_folder(size * (keep + 1))
        if self._first:
            prune(root, keep)
        location = self.engine.publish(str(version_folder(root, self.weight_version)))
        return WeightsPublished(weight_version=self.weight_version, location=location)

    def _versions_folder(self, needed_bytes: int) -> str | Path:
        make_secret(self._folder.path)
        return versions_folder(self.recipe.run, self._folder.path, needed_bytes, self.recipe.trainer.weights_folder)

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: a Hugging Face folder, and the training state."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.engine.save(str(folder))
        if self._first:
            write_manifest(Path(folder), step=self.weight_version)

    def save_model(self, folder: str | Path) -> None:
        """Write a Hugging Face folder only."""
        self.engine.save_model(str(folder))

    def load(self, folder: str | Path) -> None:
        """Continue from a checkpoint, of a loop or of a run.

        Raises:
            CheckpointError: something is missing, damaged or incompatible.
        """
        if (Path(folder) / MANIFEST).is_file():
            verify(Path(folder))
        self.engine.load(str(folder))

    # ------------------------------------------------------------ lifecycle

    def close(self) -> None:
        """Remove uploaded weights, and free the model."""
        if self._first and not self._weights_folder:
            remove_all(self.recipe.run, self._folder.path, self.recipe.trainer.weights_folder)
        if callable(close := getattr(self.engine, "close", None)):
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
