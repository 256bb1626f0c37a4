"""Slurm: a batch script of a heterogeneous job, with one component for the run and one for each role of its workers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from areal_actors.core.errors import SetupError
from areal_actors.hosts.launchers.plan import PROGRAM, LaunchPlan, Place, render_template

MEBIBYTES = 1024


def batch_script(plan: LaunchPlan, folder: Path) -> str:
    """Returns the script, which runs in `folder`, a folder that all nodes see.

    Raises:
        SetupError: sbatch cannot read the name of the folder.
    """
    if any(character in str(folder) for character in '"\\\n%'):
        raise SetupError(
            f"{folder}: sbatch does not read this name; start from a folder without quotes, backslashes, line breaks"
            " and %"
        )
    return render_template(
        "slurm.sh.jinja",
        plan=plan,
        places=(plan.run, *plan.joined),
        folder=folder,
        needs=lambda place: list(needs_of(place)),
        command=_command,
    )


def _command(words: Sequence[str]) -> str:
    return shlex.join((*PROGRAM, *words))


def needs_of(place: Place) -> Iterator[str]:
    """Yields what each task of a place needs. Several may share a node, so that memory is asked for by core."""
    yield f"--cpus-per-task={place.cpus}"
    if place.gpus:
        yield f"--gpus-per-task={place.gpus}"
    if place.memory_gb:
        yield f"--mem-per-cpu={-(-place.memory_gb * MEBIBYTES // place.cpus)}M"
