"""Makes or finds the model for `areal-actors serve`, and writes the location of its weights to a file.

Torch is loaded to make one.
Started by `run/serve.py` with the run's folder, and the model if it is not the recipe's. An embedded model is kept
beside the runs, in `models`.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import ArealError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.processes.process import EXIT_FAILED, end_with_parent
from areal_actors.processes.recipe_model import model_of
from areal_actors.weights.weight_files import location_of


def main(arguments: list[str]) -> int:
    """Write the location of the recipe's weights into the run's folder; returns the exit status."""
    folder = RunFolder(Path(arguments[0]))
    threading.Thread(target=end_with_parent, daemon=True).start()
    recipe = folder.recipe()
    if len(arguments) > 1:
        recipe = msgspec.structs.replace(recipe, model=arguments[1])
    try:
        location = location_of(model_of(recipe))
    except ArealError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    atomic_write(folder.served, msgspec.json.encode(location))
    return 0
