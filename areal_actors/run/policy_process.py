"""The run of a policy, as a process of the run that calls it: trained, or served with weights that are not trained."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from areal_actors.core.errors import ArealError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.policy_serving import serve_policy
from areal_actors.run.start import resume, run
from areal_bus.errors import BusError

FAILED = 1


def main(arguments: list[str]) -> int:
    """Run the recipe in a file, or resume its run; returns the exit status."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    recipe = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Recipe)
    try:
        if recipe.is_served():
            return serve_policy(recipe)
        if (RunFolder(Path(recipe.folder) / recipe.run).path / "recipe.json").is_file():
            kept = (f"gateway.port={recipe.gateway.port}", f"gateway.admin_key={recipe.gateway.admin_key}")
            return resume(recipe.run, kept, folder=Path(recipe.folder))
        return run(recipe, profile="", reason=f"a policy of run '{recipe.policy.run if recipe.policy else ''}'")
    except (ArealError, BusError) as error:
        sys.stderr.write(f"{error}\n")
        return FAILED


def _end_with_parent() -> None:
    """End the run in order when standard input closes: the parent holds the other end and has died."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
