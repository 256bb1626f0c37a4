"""Checks the recipes of all stages, before any of them starts."""

from __future__ import annotations

import sys
from pathlib import Path

from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.stages.stage_file import StageFile


def check_stages(stages: StageFile, root: Path) -> int:
    """Check the recipe of every stage with its settings, and print a line for each; returns the exit status.

    Model and data set of a later stage, which an earlier one makes, are those of its recipe here.

    Raises:
        RecipeError: a recipe or a setting is invalid.
    """
    cuda = detect_cuda()
    for number, stage in enumerate(stages.stage, start=1):
        title = f"stage {number} of {len(stages.stage)}, {stage.name}"
        if stage.command == "learn":
            print_line(f"{title}: learns from the sessions of {stage.sessions_of}")
            continue
        recipe, *settings = stages.words(stage, root)
        if stage.candidate_of:
            settings.append(f"gateway.candidate.model={stages.run_of(stage.candidate_of)}")  # its checkpoint is not yet
        try:
            resolved = load([Path(recipe)], settings, cuda, serving=stage.command == "serve")
        except RecipeError as error:
            raise RecipeError(f"stage `{stage.name}`: {error}") from error
        origin = ", ".join(
            text
            for name, text in (
                (stage.model_of, f"model of {stage.model_of}"),
                (stage.episodes_of, f"episodes of {stage.episodes_of} as {stage.episodes_as}"),
                (stage.candidate_of, f"beside the model of {stage.candidate_of}"),
                (stage.users, f"for {stage.users}"),
            )
            if name
        )
        steps = f"{resolved.recipe.algorithm.resolve().__struct_config__.tag}, {resolved.recipe.steps} steps"
        facts = "served" if stage.command == "serve" else steps
        print_line(f"{title}: run '{resolved.recipe.run}', {facts}" + (f"; {origin}" if origin else ""))
    return 0


def print_line(text: str) -> None:
    """Print a line about the stages on standard error, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
