"""The command `check` with everything that a run would load: data, agent and reward, which play a task."""

from __future__ import annotations

from areal_actors.cli.arguments import Options
from areal_actors.cli.checking import resolve
from areal_actors.recipe import plan
from areal_actors.recipe.budget import describe_budget
from areal_actors.recipe.measured import expected_lengths
from areal_actors.run.logs import log_to_terminal
from areal_actors.run.preflight import check_parts
from areal_actors.run.rehearsal import rehearse
from areal_actors.run.server import with_port


def check(options: Options) -> int:
    """Print the resolved recipe and the plan, check all parts, and play a task."""
    resolved = resolve(options, measures=True)
    print(plan.explain(resolved), flush=True)
    log_to_terminal()
    check_parts(resolved.recipe)
    with_port(resolved.recipe)
    print("\n# ---- Rehearsal: the agent with given answers in place of a model", flush=True)
    for line in rehearse(resolved.recipe):
        print(f"# {line}", flush=True)
    if resolved.calibration is not None:
        print("\n# ---- Budget on this machine", flush=True)
        for label, text in describe_budget(resolved.recipe, resolved.calibration, expected_lengths(resolved.recipe)):
            print(f"# {label:<11} {text}", flush=True)
    return 0
