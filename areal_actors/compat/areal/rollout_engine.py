"""AReaL's `RemoteSGLangEngine` and `RemotevLLMEngine`, outside of an episode: tasks in, tensor dicts out.

The engine and its server are those of the recipe; without a CUDA device both names are the embedded engine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Self

import msgspec

from areal_actors.compat.areal import stats_tracker
from areal_actors.compat.areal.config import InferenceEngineConfig, OptimizerConfig, PPOConfig
from areal_actors.compat.areal.data import import_from_string
from areal_actors.compat.areal.schedulers import LocalScheduler
from areal_actors.compat.areal.tensor_batch import TensorBatch, tensors_of
from areal_actors.compat.areal.to_recipe import recipe_of
from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import RolloutError
from areal_actors.library.controllers import RolloutController, TrainController
from areal_actors.library.controllers.batch import RolloutBatch
from areal_actors.recipe.recipe import Recipe

MOST_STALENESS = 10**6
"""Bound of versions ahead in place of a larger one (`int(1e12)`)."""
NO_TIMEOUT = 7 * 24 * 3600.0
"""Seconds for which a wait without a timeout waits."""


class RolloutEngine:
    """Submit tasks and wait for their trajectories; `destroy` ends what `initialize` started."""

    backend = "sglang"

    def __init__(self, config: InferenceEngineConfig, exp_config: PPOConfig | None = None) -> None:
        """`exp_config`: the program's configuration; without one the model is `config.tokenizer_path`."""
        self.config = config
        self.exp_config = exp_config
        self._rollouts: RolloutController | None = None
        self._weights: TrainController | None = None
        self._outstanding: list[int] = []

    @classmethod
    def as_controller(cls, config: InferenceEngineConfig, scheduler: LocalScheduler) -> Self:
        """Return an engine with the configuration of the program."""
        return cls(config, scheduler.exp_config)

    # ------------------------------------------------------------ lifecycle

    def initialize(self, *_: Any, **__: Any) -> None:
        """Start gateway and engine, and load the model's weights; arguments are accepted without effect.

        Raises:
            RecipeError: the configuration has no counterpart; the message lists all.
        """
        recipe = self._recipe()
        versions = min(self.config.max_head_offpolicyness, MOST_STALENESS) + 1
        ahead = recipe.trainer.batch_size * versions  # as batches of the two versions that the recipe keeps
        batches = msgspec.structs.replace(recipe.trainer, batch_size=-(-ahead // 2))
        self._rollouts = RolloutController(msgspec.structs.replace(recipe, trainer=batches)).start()
        try:
            self._weights = TrainController(recipe, self._rollouts)
            self._rollouts.update_weights(self._weights.upload_weights())
        except BaseException:
            self.destroy()
            raise

    def _recipe(self) -> Recipe:
        """The recipe of the program's configuration, with this engine's section."""
        config = copy.deepcopy(self.exp_config or PPOConfig(experiment_name="engine", trial_name=self.backend))
        config.rollout = copy.deepcopy(self.config)
        config.rollout.backend = self.config.backend or f"{self.backend}:d1"
        config.rollout.max_head_offpolicyness = 1  # there is one version of weights, and no more are kept
        config.actor.path = config.actor.path or self.config.tokenizer_path
        config.actor.optimizer = config.actor.optimizer or OptimizerConfig()
        if self.exp_config is None:
            config.actor.kl_ctl = 0.0
            config.gconfig.n_samples = max(config.gconfig.n_samples, 2)  # of the recipe; a task has its own
        return recipe_of(config, steps=1, cuda=detect_cuda())

    def destroy(self) -> None:
        """End the engine and the gateway; idempotent."""
        weights, self._weights = self._weights, None
        rollouts, self._rollouts = self._rollouts, None
        if weights is not None:
            weights.close()
        if rollouts is not None:
            rollouts.close()

    @property
    def initialized(self) -> bool:
        """True between `initialize` and `destroy`."""
        return self._rollouts is not None

    def check_health(self, base_url: str = "") -> bool:
        """True while episodes can run; the gateway is this machine's, and any address stands for it."""
        del base_url
        return self._rollouts is not None and self._rollouts.is_healthy()

    def pause(self) -> None:
        """Start no further episode; running ones complete."""
        self._started().pause()

    def resume(self) -> None:
        """Start episodes again."""
        self._started().resume()

    def get_version(self) -> int:
        """Version of the weights; 0 are the model's own."""
        return self._started().weight_version

    # ------------------------------------------------------------ tasks

    def submit(
        self,
        data: Mapping[str, Any],
        workflow: Any = None,
        workflow_kwargs: Mapping[str, Any] | None = None,
        should_accept_fn: str | None = None,
        group_size: int = 1,
    ) -> int:
        """Run a task's episodes as soon as there is room; returns its number.

        Args:
            data: the row.
            workflow: a `RolloutWorkflow` or an agent: an instance, a class, or its name, `package.module.Name`.
            workflow_kwargs: keyword arguments of the class.
            should_accept_fn: name of a predicate on the scored episode, `path.py:function`.
            group_size: number of episodes.
        """
        found = import_from_string(workflow) if isinstance(workflow, str) else workflow
        number = self._started().submit(
            data, found, options=workflow_kwargs, should_accept=should_accept_fn, group_size=group_size
        )
        self._outstanding.append(number)
        return number

    def wait(self, count: int, timeout: float | None = None) -> list[TensorBatch | None]:
        """Return the trajectories of the first `count` tasks that ended; None for one whose episodes have none.

        Raises:
            RolloutTimeout: they did not end within `timeout` seconds.
            RolloutError: fewer tasks were submitted, or too many episodes failed in a row.
        """
        if count > len(self._outstanding):
            raise RolloutError(f"wait({count}): {len(self._outstanding)} tasks were submitted; submit more")
        rollouts = self._started()
        places, batch = rollouts.collect(self._outstanding, count, NO_TIMEOUT if timeout is None else timeout)
        self._outstanding = [number for number in self._outstanding if number not in places]
        return self._trajectories(places, batch)

    def rollout_batch(
        self,
        data: Iterable[Mapping[str, Any]],
        workflow: Any = None,
        workflow_kwargs: Mapping[str, Any] | None = None,
        should_accept_fn: str | None = None,
        group_size: int = 1,
    ) -> list[TensorBatch | None]:
        """Run these tasks to their end; returns their trajectories in the order of the tasks. Arguments of `submit`."""
        numbers = [self.submit(row, workflow, workflow_kwargs, should_accept_fn, group_size) for row in data]
        places, batch = self._started().collect(numbers, len(numbers), NO_TIMEOUT)
        self._outstanding = [number for number in self._outstanding if number not in places]
        return self._trajectories(places, batch)

    rollout = rollout_batch

    def export_stats(self) -> dict[str, float]:
        """Return the values of `stats_tracker` since the last call."""
        return stats_tracker.export_all()

    def _trajectories(self, places: Mapping[int, int | None], batch: RolloutBatch) -> list[TensorBatch | None]:
        """Return the tensors of each task, in the order of `places`, which are places in the batch."""
        assert self._weights is not None, "initialized"
        sequences = self._weights.sequences(batch) if batch.groups else []
        rows = {place: tensors_of(list(each)) for place, each in groupby(sequences, key=lambda row: row.group)}
        return [None if place is None else rows[place] for place in places.values()]

    def _started(self) -> RolloutController:
        if self._rollouts is None:
            raise RolloutError("this engine is not initialized; call initialize() first")
        return self._rollouts


class RemoteSGLangEngine(RolloutEngine):
    """An engine of SGLang."""


class RemotevLLMEngine(RolloutEngine):
    """An engine of vLLM."""

    backend = "vllm"
