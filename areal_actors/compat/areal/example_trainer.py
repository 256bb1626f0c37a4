"""AReaL's `SFTTrainer`, `DPOTrainer` and `RWTrainer`: a recipe of the configuration, run as `areal-actors run` does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from areal_actors.compat.areal.config import BaseExperimentConfig
from areal_actors.compat.areal.example_config import DPOConfig
from areal_actors.compat.areal.recipe_file import recipe_toml
from areal_actors.compat.areal.to_recipe import run_name, shared_complaints, trainer_table
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError, RolloutError

Rows = Sequence[Mapping[str, Any]]


class ExampleTrainer:
    """Use it in a `with`. Rows have the forms of `get_custom_dataset`, or those of docs/supervised.md."""

    algorithm: ClassVar[str] = ""

    def __init__(
        self, config: BaseExperimentConfig, train_dataset: Rows | None = None, valid_dataset: Rows | None = None
    ) -> None:
        """Check the configuration; nothing starts yet.

        Raises:
            RecipeError: there are too few rows, or a setting has no counterpart; the message lists all.
        """
        size = config.train_dataset.batch_size
        if train_dataset is None or len(train_dataset) < size:
            row_count = "none" if train_dataset is None else f"{len(train_dataset)} rows"
            raise RecipeError(f"train_dataset: found {row_count}, expected at least train_dataset.batch_size = {size}")
        self.config = config
        self.train_dataset = train_dataset
        self.valid_dataset = valid_dataset or ()
        self.steps_per_epoch = len(train_dataset) // size
        steps = config.total_train_epochs * self.steps_per_epoch
        self.steps = steps if config.total_train_steps is None else min(steps, config.total_train_steps)
        if complaints := shared_complaints(config, config.actor):  # type: ignore[attr-defined]
            raise RecipeError("\n".join(complaints))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: `train` ends what it starts."""

    @property
    def folder(self) -> Path:
        """The folder of the run, with its checkpoints and metrics."""
        return Path(self.config.cluster.fileroot).absolute() / run_name(self.config)

    def train(self) -> None:
        """Train until the last step; with `recover` a run that was stopped continues from its last checkpoint.

        Raises:
            RolloutError: the run failed; its output has the reason.
        """
        source = self.folder.with_name(f"{self.folder.name}-source")
        if self.config.recover.is_on and self.folder.is_dir():
            words = ["resume", str(self.folder)]
        else:
            words = ["run", str(self._write_recipe(source))]
        if (status := subprocess.run([sys.executable, "-m", "areal_actors", *words], check=False).returncode) != 0:
            raise RolloutError(f"`{COMMAND} {' '.join(words)}` ended with status {status}; its output has the reason")

    def _write_recipe(self, folder: Path) -> Path:
        """Write rows and recipe; returns the recipe's file."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("train", self.train_dataset), ("valid", self.valid_dataset)):
            lines = (msgspec.json.encode(example_row(row), enc_hook=_plain) + b"\n" for row in rows)
            (folder / f"{name}.jsonl").write_bytes(b"".join(lines))
        recipe = folder / "recipe.toml"
        recipe.write_text(recipe_toml(self._tables(folder)), encoding="utf-8")
        return recipe

    def _tables(self, folder: Path) -> dict[str, Any]:
        config, held_out = self.config, len(self.valid_dataset)
        actor = config.actor  # type: ignore[attr-defined]
        every = config.saver.steps_between(self.steps_per_epoch)
        evaluated = config.evaluator.steps_between(self.steps_per_epoch)
        longest = actor.mb_spec.max_tokens_per_mb
        return {
            "run": run_name(config),
            "seed": config.seed,
            "steps": self.steps,
            "model": actor.path,
            "folder": str(self.folder.parent),
            "task": {
                "dataset": str(folder / "train.jsonl"),
                "held_out": str(folder / "valid.jsonl") if held_out else 0,
                **({"max_length": longest} if longest else {}),
            },
            "algorithm": {"name": self.algorithm, **self._options()},
            "trainer": trainer_table(actor, config.train_dataset.batch_size, self.steps),
            "evaluation": {"tasks": held_out, **({"every_steps": evaluated} if held_out and evaluated else {})},
            "checkpoint": {"every_steps": every} if every else {},
        }

    def _options(self) -> dict[str, Any]:
        """Settings of the algorithm."""
        return {}


class SFTTrainer(ExampleTrainer):
    """Supervised fine-tuning: rows with `input_ids` and `loss_mask`, or with messages."""

    algorithm = "sft"


class RWTrainer(ExampleTrainer):
    """A reward model: rows with `chosen_ids` and `rejected_ids`, or with their texts."""

    algorithm = "reward_model"


class DPOTrainer(ExampleTrainer):
    """Direct preference optimization: rows as of `RWTrainer`."""

    algorithm = "dpo"

    def _options(self) -> dict[str, Any]:
        assert isinstance(self.config, DPOConfig), "the class of its programs"
        actor, reference = self.config.actor, self.config.ref
        model = "initial" if reference.path in ("", actor.path) else reference.path
        return {"beta": actor.beta, "variant": actor.loss_type, "reference": model}


def example_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of tokens in the form of docs/supervised.md; any other row as it is."""
    if "input_ids" in row and "loss_mask" in row:
        return {"input_ids": list(row["input_ids"]), "completion_mask": [int(entry) for entry in row["loss_mask"]]}
    if "chosen_ids" in row and "prompt_ids" not in row:
        chosen, rejected = list(row["chosen_ids"]), list(row["rejected_ids"])
        pairs = zip(chosen, rejected, strict=False)
        shared = next(
            (place for place, (one, two) in enumerate(pairs) if one != two), min(len(chosen), len(rejected)) - 1
        )
        return {"prompt_ids": chosen[:shared], "chosen_ids": chosen[shared:], "rejected_ids": rejected[shared:]}
    return dict(row)


def _plain(value: Any) -> Any:
    """Returns numbers and columns of other libraries as Python's."""
    if callable(listed := getattr(value, "tolist", None)):
        return listed()
    raise TypeError(f"a row has {type(value).__name__}; rows of examples have texts, numbers, lists and tables")
