"""Training for a loop written by hand: batches go in, metrics and weights come out.

The engine is the one that a run's trainer has, made from the same recipe: the same recipe, seed and batches give the same
weights, to the last bit on a CPU (`upload_weights` tells their checksum, as the log of a run does).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec
import torch.distributed
from torch import Tensor

from areal_actors.controllers.batch import RolloutBatch, Trajectories, batch_rows
from areal_actors.controllers.intake import credit_of
from areal_actors.engines.manifest import MANIFEST, verify, write_manifest
from areal_actors.engines.optimization import learning_rate
from areal_actors.engines.prepared import Prepared
from areal_actors.engines.ranks import Ranks
from areal_actors.engines.torch_trainer import TorchTrainer
from areal_actors.engines.weight_folders import prune, remove_all, shared_memory_folder, version_folder
from areal_actors.errors import EngineError, RolloutError
from areal_actors.messages import WeightsPublished
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.process import Place
from areal_actors.run.served_model import kept_model
from areal_actors.run.tensor_process import SPARE_VERSIONS, Preparation
from areal_actors.run_folder import RunFolder
from areal_actors.steps.engine_mismatch import reported_metrics
from areal_actors.steps.step_metrics import batch_metrics
from areal_actors.values import Row, WeightsLocation

Data = RolloutBatch | Sequence[Row]
"""What a step learns from: references, of which the rows are made here, or the rows."""


class Engine(Protocol):
    """What this controller asks of a `TrainingEngine`; `TorchTrainer` says what each does."""

    weight_version: int

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Prepare and update."""
        ...

    def prepare(self, rows: Sequence[Row]) -> Prepared:
        """What the algorithm makes of rows."""
        ...

    def update(self, prepared: Prepared) -> dict[str, float]:
        """All updates of a step."""
        ...

    def evaluate(self, rows: Sequence[Row]) -> dict[str, float]:
        """The loss, without an update."""
        ...

    def logp(self, rows: Sequence[Row]) -> Tensor:
        """Float32 `[tokens]`."""
        ...

    def values(self, rows: Sequence[Row]) -> Tensor:
        """Float32 `[tokens]`."""
        ...

    def publish(self, folder: str) -> WeightsLocation:
        """Write weights for inference workers."""
        ...

    def save_model(self, folder: str) -> None:
        """Write a Hugging Face folder."""
        ...

    def save(self, folder: str) -> None:
        """Write a checkpoint."""
        ...

    def load(self, folder: str) -> None:
        """Read one."""
        ...


class TrainController:
    """Use it in a `with`, or call `close`: it removes the weights that it has uploaded, not what was saved.

    Everywhere `tokens` are the trained tokens of the batch's rows: those of the first row in their order, then the next row's.
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
        """Load the model; an embedded one is made first, once for all loops with the same seed and `[warm_start]`.

        Args:
            recipe: its `[algorithm]` and `[trainer]` hold, `steps` (where the schedule ends), `seed`, `sampling.temperature`,
                `staleness_gate.max_staleness` and how `[task]` shares rewards among rows.
            trajectories: where those of batches are had: a `RolloutController`, or a `LogReader`.
            model_folder: a Hugging Face folder in place of the recipe's model.
            ranks: the processes that train together, when each constructs a controller of its own; see `join_ranks`.
            weights_folder: where `upload_weights` writes, on a disk that the inference workers see too; shared memory if not
                said, which is for workers on this host.

        Raises:
            SetupError: the model cannot be had.
        """
        self.recipe = recipe
        self.trajectories = trajectories
        self._credit = credit_of(recipe)
        self._first = ranks is None or ranks.first
        self._folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
        self._weights_folder = weights_folder
        self._model_folder = str(model_folder) or self._model()
        self.engine: Engine = self._engine(ranks)

    def _model(self) -> str:
        """Made or fetched by the first rank, then found by the others."""
        if self._first:
            found = kept_model(self.recipe)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        return found if self._first else kept_model(self.recipe)

    def _engine(self, ranks: Ranks | None) -> Any:
        recipe = msgspec.structs.replace(self.recipe, model=self._model_folder)
        if ranks is None:
            return Preparation(Place(recipe=recipe, folder=self._folder, instance="trainer-0"))(_unheard)
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
        """Steps taken."""
        return self.engine.weight_version

    # ------------------------------------------------------------ learning

    def train_batch(self, batch: Data) -> dict[str, float]:
        """One step: all the updates that the algorithm takes on a batch. Its metrics, of a `RolloutBatch` with staleness and lengths.

        Raises:
            EngineError: nothing in the batch is trained, or a reward, the loss or the gradient is not finite.
            LogUnavailable: a trajectory is not where the batch says.
        """
        rows = self.rows(batch)
        return reported_metrics(self.engine.step(rows)) | self._told(batch, rows)

    def eval_batch(self, batch: Data) -> dict[str, float]:
        """Loss and measures of a batch under the present weights, which stay as they are; raises like `train_batch`."""
        return self.engine.evaluate(self.rows(batch))

    def forward(self, batch: Data) -> list[Tensor]:
        """What the model says of each row's trained tokens, float32 `[tokens of the row]`: log-probabilities, or a scalar head's values."""
        rows = self.rows(batch)
        said = self.engine.values(rows) if self.recipe.algorithm.head == "value" else self.engine.logp(rows)
        return list(said.split_with_sizes([int(row.loss_mask[1:].sum()) for row in rows]))

    def compute_logp(self, batch: Data) -> Tensor:
        """Log-probabilities under the present weights, at the temperature of sampling: float32 `[tokens]` on the CPU."""
        return self.engine.logp(self.rows(batch))

    def compute_values(self, batch: Data) -> Tensor:
        """What the critic, or the trained scalar head, expects just before each token: float32 `[tokens]` on the CPU.

        Raises:
            EngineError: the algorithm has neither.
        """
        return self.engine.values(self.rows(batch))

    def compute_advantages_and_returns(self, batch: Data) -> Prepared:
        """What the tokens of a batch are worth under the present weights: `advantages.tokens`, `advantages.returns`, and all beside.

        Raises:
            EngineError: as for `train_batch`; or the ranks are driven from here, and keep to themselves what they prepare.
        """
        if not hasattr(self.engine, "prepare"):
            raise EngineError(
                "compute_advantages_and_returns: the ranks of this group prepare and update in one step; call train_batch, "
                "or start the script with torchrun and hand in join_ranks(recipe)"
            )
        return self.engine.prepare(self.rows(batch))

    def ppo_update(self, prepared: Prepared) -> dict[str, float]:
        """The updates on what was prepared, possibly with changes of the loop's own; with what goes before it, `train_batch`.

        Raises:
            EngineError: the loss or the gradient is not finite.
        """
        return reported_metrics(self.engine.update(prepared))

    def step_lr_scheduler(self) -> float:
        """The learning rate of the next step. The schedule counts the steps taken and needs no step of its own."""
        return learning_rate(self.recipe.trainer.optimizer, self.weight_version, self.recipe.steps)

    def rows(self, batch: Data) -> list[Row]:
        """A batch as the loss sees it.

        Raises:
            LogUnavailable: a trajectory is not where the batch says.
            RolloutError: there is nobody to ask for trajectories, or the batch is empty.
        """
        if not isinstance(batch, RolloutBatch):
            return list(batch)
        if self.trajectories is None:
            raise RolloutError(
                "a RolloutBatch only says where its trajectories are; construct TrainController(recipe, rollouts) to fetch them"
            )
        if not batch.groups:
            raise RolloutError("the batch has no group: every episode of it was abandoned; see `abandoned` of the RolloutController")
        return batch_rows(batch, self.trajectories.trajectories(batch), self._credit)

    def _told(self, batch: Data, rows: Sequence[Row]) -> dict[str, float]:
        return batch_metrics(rows, batch.formed()) if isinstance(batch, RolloutBatch) else {}

    # ------------------------------------------------------------ weights in and out

    def upload_weights(self) -> WeightsPublished:
        """Write the present weights for inference workers; what `RolloutController.update_weights` takes.

        As many older versions stay as a token's staleness allows.
        """
        keep = self.recipe.staleness_gate.max_staleness + SPARE_VERSIONS
        size = sum(path.stat().st_size for path in Path(self._model_folder).glob("*.safetensors"))
        root = self._weights_folder or shared_memory_folder(self.recipe.run, self._folder.path, needed_bytes=size * (keep + 1))
        if self._first:
            prune(root, keep)
        location = self.engine.publish(str(version_folder(root, self.weight_version)))
        return WeightsPublished(weight_version=self.weight_version, location=location)

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: a Hugging Face folder, and beside it what training needs to continue."""
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
            CheckpointError: something is missing, damaged or does not fit.
        """
        if (Path(folder) / MANIFEST).is_file():
            verify(Path(folder))
        self.engine.load(str(folder))

    # ------------------------------------------------------------ its life

    def close(self) -> None:
        """Remove uploaded weights, and free the model."""
        if self._first and not self._weights_folder:
            remove_all(self.recipe.run, self._folder.path)
        if callable(close := getattr(self.engine, "close", None)):
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unheard(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
    """How far the preparation is; a loop waits for it."""
