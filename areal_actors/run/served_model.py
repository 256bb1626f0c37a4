"""Makes or finds the model for `areal serve`, and writes the location of its weights to a file; loads torch.

Started by `run/serve.py` as `python -m areal_actors.run.served_model RUN_FOLDER`. An embedded model is cached beside the runs, under
a name with a hash of its settings.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import msgspec

from areal_actors import __version__
from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import ArealError
from areal_actors.embedded.embedded_model import make_embedded_model
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
        location = location_of(kept_model(folder.recipe()))
    except ArealError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    atomic_write(folder.served, msgspec.json.encode(location))
    return 0


def kept_model(recipe: Recipe) -> str:
    """Returns the Hugging Face folder of the recipe's model, made or downloaded if missing."""
    made_by = msgspec.json.encode((__version__, recipe.seed, recipe.warm_start))
    folder = Path(recipe.folder).absolute() / "models" / f"{EMBEDDED}-{blake2b(made_by, digest_size=4).hexdigest()}"
    return model_at(folder, recipe, _show)


def model_at(folder: Path, recipe: Recipe, show: Callable[[int, int, dict[str, float]], None]) -> str:
    """Returns the Hugging Face folder of the recipe's model, downloaded if missing; an embedded one is made in `folder`."""
    if recipe.model != EMBEDDED:
        return model_folder(recipe.model)
    if not folder.exists():
        make_embedded_model(str(folder), recipe.warm_start, recipe.seed, recipe.trainer.threads, show)
    return str(folder)


def _show(done: int, total: int, metrics: dict[str, float]) -> None:
    if done % SHOWN_EVERY == 0 or done == total:
        sys.stdout.write(f"making the embedded model: {done} of {total} steps, loss {metrics['loss']:.3f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
