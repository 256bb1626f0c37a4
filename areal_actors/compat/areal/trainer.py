"""AReaL's `PPOTrainer`: its training loop over the controllers of `areal_actors.library`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog

from areal_actors.compat.areal import stats_tracker
from areal_actors.compat.areal.config import PPOConfig
from areal_actors.compat.areal.data import import_from_string
from areal_actors.compat.areal.loop_place import Draws, LoopPlace, PlaceFolder
from areal_actors.compat.areal.to_recipe import convert_config, recipe_of
from areal_actors.compat.areal.workflow import ArealWorkflow
from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import RecipeError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.library.controllers import RolloutController, TrainController
from areal_actors.library.controllers.backends import Backend
from areal_actors.recipe.recipe import Recipe
from areal_actors.tasks.order import Order

SHOWN = ("reward_mean", "loss", "grad_norm", "eval/reward_mean", "eval/failed")
"""Metrics printed after each step; metrics.jsonl has all."""


logger = structlog.get_logger(__name__)


class PPOTrainer:
    """Use it in a `with`. `config` is checked when it is made; models, gateway and agents start with `train`."""

    def __init__(
        self,
        config: PPOConfig,
        train_dataset: Sequence[Mapping[str, Any]] | None = None,
        valid_dataset: Sequence[Mapping[str, Any]] | None = None,
        *,
        backend: Backend | None = None,
    ) -> None:
        """`backend`: as of `RolloutController`.

        Raises:
            RecipeError: there are no rows to train on, or a setting has no counterpart; the message lists all.
        """
        size = config.train_dataset.batch_size
        if train_dataset is None or len(train_dataset) < size:
            row_count = "none" if train_dataset is None else f"{len(train_dataset)} rows"
            raise RecipeError(f"train_dataset: found {row_count}, expected at least train_dataset.batch_size = {size}")
        self.config = config
        self.train_dataset = train_dataset
        self.valid_dataset = valid_dataset
        self.steps_per_epoch = len(train_dataset) // size
        self._backend = backend
        self._cuda = detect_cuda()
        self.recipe = recipe_of(config, steps=self._steps(config.total_train_epochs), cuda=self._cuda)
        """The recipe of the configuration; `train` adds what depends on the workflow."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: `train` ends what it starts."""

    def train(
        self,
        workflow: Any = None,
        eval_workflow: Any = None,
        workflow_kwargs: Mapping[str, Any] | None = None,
        eval_workflow_kwargs: Mapping[str, Any] | None = None,
        dynamic_filter_fn: Callable[[dict[str, Any]], bool] | str | None = None,
        total_epochs: int | None = None,
    ) -> None:
        """Train: each step takes a batch of finished groups, while others run; then it saves and evaluates when due.

        Args:
            workflow: a `RolloutWorkflow` or an agent with `async def run(self, data, **extra_kwargs)`: an instance, a
                class, a function, or its name, `package.module.Name`.
            eval_workflow: the same for the rows of `valid_dataset`; None evaluates nothing.
            workflow_kwargs: keyword arguments of the class.
            eval_workflow_kwargs: keyword arguments of the class for evaluation.
            dynamic_filter_fn: not supported; use `batcher.filter` in a recipe.
            total_epochs: instead of `total_train_epochs`.

        Raises:
            RecipeError: there is no workflow of this name, or a filter is given.
            RolloutError: too many episodes failed in a row; the message has the last reason.
        """
        if dynamic_filter_fn is not None:
            raise RecipeError(
                "dynamic_filter_fn: filters of groups get rewards here, not tensors; write `batcher.filter` in a recipe"
            )
        if workflow is None:
            raise RecipeError(
                'train(workflow=None): name a workflow; for external agents write a recipe with `task.agent = "online"`'
            )
        runs = Rollouts(workflow, workflow_kwargs), Rollouts(eval_workflow, eval_workflow_kwargs)
        steps = self._steps(total_epochs or self.config.total_train_epochs)
        recipe = recipe_of(self.config, steps=steps, cuda=self._cuda, discounts=not runs[0].is_workflow)
        for difference in convert_config(self.config, steps=steps, cuda=self._cuda).differences:
            logger.warning("differs from AReaL", setting=difference)
        with RolloutController(recipe, self._backend) as rollouts, TrainController(recipe, rollouts) as trainer:
            self._loop(recipe, rollouts, trainer, *runs)

    def _steps(self, epochs: int) -> int:
        steps = epochs * self.steps_per_epoch
        return steps if self.config.total_train_steps is None else min(steps, self.config.total_train_steps)

    def _loop(
        self, recipe: Recipe, rollouts: RolloutController, trainer: TrainController, train: Rollouts, held_out: Rollouts
    ) -> None:
        folder = RunFolder(Path(recipe.folder).absolute() / recipe.run).path
        kept, timeout = PlaceFolder(folder.with_name(f"{recipe.run}-recover")), self.config.rollout.request_timeout
        place = kept.read() if self.config.recover.is_on else LoopPlace()
        if place.checkpoint:
            trainer.load(kept.folder / place.checkpoint)
            sys.stdout.write(f"continuing after step {place.step}, from {kept.folder}\n")
        draws = Draws(place, self._row_of_draw)
        tasks = self._tasks(draws)
        rollouts.update_weights(trainer.upload_weights())
        if (
            not place.step
            and self.config.evaluator.eval_before_train
            and (metrics := self._evaluate(rollouts, held_out))
        ):
            self._write(folder, 0, metrics | stats_tracker.export_all())
        for step in range(place.step + 1, recipe.steps + 1):
            batch = rollouts.prepare_batch(tasks, train.workflow_for(recipe), options=train.options, timeout=timeout)
            metrics = trainer.train_batch(batch)
            draws.train(batch.numbers)
            rollouts.update_weights(trainer.upload_weights())
            if self.config.saver.is_due(step, self.steps_per_epoch) or step == recipe.steps:
                trainer.save(folder / "checkpoints" / f"step-{step}")
            if self.config.evaluator.is_due(step, self.steps_per_epoch):
                metrics |= self._evaluate(rollouts, held_out)
            self._write(folder, step, metrics | stats_tracker.export_all())
            if self.config.recover.is_on and (
                self.config.recover.is_due(step, self.steps_per_epoch) or step == recipe.steps
            ):
                kept.keep(draws.place(step), trainer.save)

    def _row_of_draw(self, draw: int) -> int | None:
        """Each epoch has every row once, in whole batches, shuffled by the seed."""
        settings, length = self.config.train_dataset, len(self.train_dataset)
        if draw % length >= self.steps_per_epoch * settings.batch_size and settings.drop_last:
            return None
        return Order(length=length, seed=self.config.seed if settings.shuffle else None).row(draw)

    def _tasks(self, draws: Draws) -> Iterator[Mapping[str, Any]]:
        for number in draws.rows():
            yield {"id": f"row-{number}", **self.train_dataset[number]}

    def _evaluate(self, rollouts: RolloutController, held_out: Rollouts) -> dict[str, float]:
        """Run every row of the validation set once; returns the mean reward and the number of failed rows."""
        if self.valid_dataset is None or held_out.workflow is None:
            return {}
        rows = [{"id": f"valid-{number}", **row} for number, row in enumerate(self.valid_dataset)]
        timeout = self.config.rollout.request_timeout
        evaluation = rollouts.evaluate(
            rows, held_out.workflow_for(self.recipe), options=held_out.options, timeout=timeout
        )
        return {"eval/reward_mean": evaluation.mean_reward, "eval/failed": float(len(evaluation.failed))}

    def _write(self, folder: Path, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line to the run's metrics.jsonl, and print the most important values."""
        with (folder / "metrics.jsonl").open("ab") as file:
            file.write(msgspec.json.encode({"step": step, **metrics}) + b"\n")
        shown = ", ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics)
        sys.stdout.write(f"step {step}: {shown}\n")
        sys.stdout.flush()


class Rollouts:
    """A workflow as given to `train`."""

    def __init__(self, workflow: Any, options: Mapping[str, Any] | None) -> None:
        """Find the workflow.

        Raises:
            RecipeError: there is none of this name.
        """
        self.workflow = workflow
        self.found = import_from_string(workflow) if isinstance(workflow, str) else workflow
        self.options = dict(options or {})
        kind = self.found if inspect.isclass(self.found) else type(self.found)
        self.is_workflow = issubclass(kind, ArealWorkflow)

    def workflow_for(self, recipe: Recipe) -> Any:
        """The workflow for a controller: an agent that runs in a process of its own by its name, all others as objects.

        Raises:
            RecipeError: an agent without a name is to run in a process of its own.
        """
        if self.is_workflow or recipe.task.runner == "inline":
            return self.found
        if not isinstance(self.workflow, str):
            raise RecipeError(
                'rollout.agent.mode: subproc needs the name of the agent; pass workflow="package.module.Name"'
            )
        return self.workflow
