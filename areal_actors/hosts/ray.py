"""Ray: a program with an actor for the run and one for each host that joins it. Only that program imports Ray."""

from __future__ import annotations

from pathlib import Path

from areal_actors.hosts.plan import PROGRAM, LaunchPlan, Place, rendered


def ray_program(plan: LaunchPlan, folder: Path) -> str:
    """Returns the program; the run works in `folder`."""
    run = (*PROGRAM, *plan.run.words)
    return rendered("ray_job.py.jinja", plan=plan, folder=folder, run_command=run, join_command=(*PROGRAM, "join"), needs=_needs)


def _needs(place: Place) -> dict[str, int]:
    memory = {"memory": place.memory_gb << 30} if place.memory_gb else {}
    return {"num_cpus": place.cpus, "num_gpus": place.gpus, **memory}
