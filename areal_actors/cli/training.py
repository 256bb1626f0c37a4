"""The commands that take a recipe: run | resume | serve | check."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.core.devices import CudaDevices, detect_cuda
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import Resolved, load
from areal_actors.recipe.paths import find_recipe, is_file
from areal_actors.recipe.plan import explain, to_json
from areal_actors.run import launcher
from areal_actors.run import serve as serving


def run(options: Options) -> int:
    """Train with a recipe."""
    resolved = _load(options)
    return launcher.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)


def resume(options: Options) -> int:
    """Resume a run."""
    names = [word for word in options.words if "=" not in word]
    if len(names) > 1:
        raise RecipeError(f"found several runs, {' and '.join(names)}; name one run, and overrides as KEY=VALUE")
    overrides = [word for word in options.words if "=" in word] + options.set
    return launcher.resume("".join(names), overrides, folder=Path(options.folder), checkpoint=options.checkpoint)


def serve(options: Options) -> int:
    """Serve a recipe's model."""
    resolved = _load(options, serving=True)
    return serving.serve(resolved.recipe, profile=resolved.profile, reason=resolved.reason)


def check(options: Options) -> int:
    """Print the resolved recipe and the plan."""
    resolved = _load(options, cuda=options.devices)
    print(to_json(resolved) if options.json else explain(resolved), flush=True)
    return 0


def _load(options: Options, *, serving: bool = False, cuda: CudaDevices | None = None) -> Resolved:
    files = [word for word in options.words if is_file(word)]
    overrides = [word for word in options.words if not is_file(word)] + options.set
    if not files:
        raise RecipeError("found no recipe among the arguments; name a TOML file, as in `recipes/gsm8k_grpo.toml`")
    return load([find_recipe(file, options.origin) for file in files], overrides, cuda or detect_cuda(), serving=serving)
