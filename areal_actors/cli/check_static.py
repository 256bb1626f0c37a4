"""The command `check` as far as it only reads recipes, and recipes of the words of a command."""

from __future__ import annotations

import sys
from pathlib import Path

from areal_actors.calibration.calibrate import Calibration, calibrate
from areal_actors.cli.command import Options
from areal_actors.core.devices import CudaDevices, detect_cuda
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.extras import TRAIN, require_extra
from areal_actors.recipe import plan
from areal_actors.recipe.load import Measure, Resolved, load
from areal_actors.recipe.measured import measurements
from areal_actors.recipe.paths import find_recipe, is_file
from areal_actors.recipe.recipe import Recipe
from areal_actors.stages.check_stages import check_stages
from areal_actors.stages.stage_file import StageFile, has_stages, read_stages


def check(options: Options) -> int:
    """Print the resolved recipe and the plan."""
    if stages := stages_of(options):
        return check_stages(*stages)
    resolved = resolve(options, cuda=options.devices)
    text = plan.to_json(resolved, full=options.full) if options.as_json else describe_recipe(resolved, options)
    print(text, flush=True)
    return 0


def describe_recipe(resolved: Resolved, options: Options) -> str:
    """Returns what `check` prints about a recipe."""
    if options.full:
        return plan.explain(resolved)
    overrides = files_and_overrides(options)[1]
    return plan.summarize(resolved, {word.partition("=")[0].strip() for word in overrides})


def stages_of(options: Options) -> tuple[StageFile, Path] | None:
    """Returns the stages of the file that the words name, and its folder; None for a recipe."""
    files, overrides = files_and_overrides(options)
    return (read_stages(files[0], overrides), files[0].parent) if has_stages(files[0]) else None


def resolve(
    options: Options, *, serving: bool = False, cuda: CudaDevices | None = None, measure: Measure | None = None
) -> Resolved:
    """Returns the recipe of the words: files, and settings over them; `measure` measures this machine for a model.

    Raises:
        RecipeError: no file is named, or the recipe is invalid.
    """
    files, overrides = files_and_overrides(options)
    return load(files, overrides, cuda or detect_cuda(), serving=serving, measure=measure)


def measure_machine(recipe: Recipe, cuda: CudaDevices) -> Calibration | None:
    """Measure this machine for a recipe.

    Returns None, with a line on the terminal, where nothing is to be measured or a measurement fails.
    """
    decode, train = measurements(recipe, cuda)
    if decode is None and train is None:
        return None
    try:
        require_extra(TRAIN, "a measurement")
        print(f"measuring this machine for {recipe.model} …", file=sys.stderr, flush=True)
        return calibrate(decode, train, together=recipe.staleness_gate.max_staleness > 0)
    except SetupError as error:
        print(
            f"not measured, so limits are those of a recipe without measurements: {error}", file=sys.stderr, flush=True
        )
        return None


def files_and_overrides(options: Options) -> tuple[list[Path], list[str]]:
    """Returns the recipe files of the words, and the settings over them.

    Raises:
        RecipeError: no file is named.
    """
    files = [word for word in options.words if is_file(word)]
    overrides = [word for word in options.words if not is_file(word)] + options.set
    if not files:
        raise RecipeError("found no recipe among the arguments; name a TOML file, as in `recipes/gsm8k_grpo.toml`")
    for word in files:
        if word.partition(".")[0] in Recipe.__struct_fields__ and not find_recipe(word, options.origin).is_file():
            raise RecipeError(f"`{word}` is a setting, and needs a value: write `{word}=VALUE`")
    return [find_recipe(file, options.origin) for file in files], overrides
