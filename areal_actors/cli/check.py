"""The command `check` with everything that a run would load: data, agent and reward, which play a task."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Sequence

from areal_actors.cli.check_static import describe_recipe, measure_machine, resolve, stages_of
from areal_actors.cli.command import Options
from areal_actors.core.devices import detect_cuda
from areal_actors.core.foreign_text import show_controls
from areal_actors.folder.process_logs import log_to_terminal
from areal_actors.recipe.budget import Lengths, describe_budget
from areal_actors.recipe.measured import expected_lengths, measurements
from areal_actors.recipe.needed_extras import extras_problem
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.data_check import check_data
from areal_actors.run.preflight import check_parts
from areal_actors.run.rehearsal import Played, rehearse
from areal_actors.stages.check_stages import check_stages
from areal_actors.supervision.nats_server import with_port


def check(options: Options) -> int:
    """Print the resolved recipe and the plan, check all parts, and play a task."""
    if stages := stages_of(options):
        return check_stages(*stages)
    resolved = resolve(options, measure=measure_machine)
    print(describe_recipe(resolved, options), flush=True)
    log_to_terminal()
    if lacking := extras_problem(resolved.recipe):
        print(f"# not here     a run cannot start on this machine: {lacking}", flush=True)
    for notice in check_parts(resolved.recipe):
        print(f"# {notice}", flush=True)
    with_port(resolved.recipe)
    print("\n# ---- Rehearsal: the agent with given answers in place of a model", flush=True)
    played = print_lines(rehearse(resolved.recipe))
    if options.data:
        print("\n# ---- Data: every row", flush=True)
        for line in check_data(resolved.recipe):
            print(show_controls(f"# {line}"), flush=True)
    if resolved.calibration is not None:
        print("\n# ---- Budget on this machine", flush=True)
        lengths = lengths_of(resolved.recipe, played)
        for label, text in describe_budget(resolved.recipe, resolved.calibration, lengths):
            print(f"# {label:<11} {text}", flush=True)
    elif measurements(resolved.recipe, detect_cuda()) != (None, None):
        print("\n# ---- Budget on this machine\n# not measured, for the reason in the first lines", flush=True)
    return 0


def print_lines(rehearsal: Generator[str, None, list[Played]]) -> list[Played]:
    """Print the lines of a rehearsal as they come; returns its episodes."""
    while True:
        try:
            print(show_controls(f"# {next(rehearsal)}"), flush=True)
        except StopIteration as end:
            played: list[Played] = end.value
            return played


def lengths_of(recipe: Recipe, played: Sequence[Played]) -> Lengths:
    """Tokens of an episode's prompts as in the rehearsal, and of its answers at most.

    Without a rehearsal they are those that the recipe permits.
    """
    whole = [episode for episode in played if episode.prompt_tokens]
    if not whole:
        return expected_lengths(recipe)
    calls = max(one.calls for one in whole)
    answers = min(calls * recipe.sampling.max_tokens, recipe.generation.max_model_len)
    return Lengths(prompt=statistics.fmean(one.prompt_tokens for one in whole), answer=answers)
