"""Makes or finds the model for `areal serve`, and writes the location of its weights to a file; loads torch.

Started by `run/serve.py` as `python -m areal_actors.run.served_model RUN_FOLDER`. An embedded model is kept beside the runs, in `models`.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import ArealError
from areal_actors.embedded.kept_models import kept_model
from areal_actors.embedded.warm_start import Progress
from areal_actors.recipe.checks import EMBEDDED
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.process import EXIT_FAILED, end_with_parent
from areal_actors.run.run_folder import RunFolder
from areal_actors.weights.model_hub import model_folder
from areal_actors.weights.transfer import location_of

SHOWN_EVERY = 100
"""Supervised steps between two progress lines."""


def main(arguments: list[str]) -> int:
    """Write the location of the recipe's weights into the run's folder; returns the exit status."""
    folder = RunFolder(Path(arguments[0]))
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        location = location_of(model_of(folder.recipe()))
    except ArealError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    atomic_write(folder.served, msgspec.json.encode(location))
    return 0


def model_of(recipe: Recipe, show: Progress | None = None) -> str:
    """Returns the Hugging Face folder of the recipe's model, made or downloaded if missing; `show` takes the progress of making it."""
    if recipe.model != EMBEDDED:
        return model_folder(recipe.model)
    models = Path(recipe.folder).absolute() / "models"
    return kept_model(models, recipe.warm_start, recipe.seed, recipe.trainer.threads, show or _show)


def _show(done: int, total: int, metrics: dict[str, float]) -> None:
    if done % SHOWN_EVERY == 0 or done == total:
        sys.stdout.write(f"making the embedded model: {done} of {total} steps, loss {metrics['loss']:.3f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
