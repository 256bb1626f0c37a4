"""Loads a recipe: merges files, then the profile for this machine, then overrides.

A file may have `[profiles.NAME]` tables with any keys of a recipe, which override it if that profile is chosen: by name
(`profile = "NAME"`), or by `when` ("cuda", "no cuda", or "no cuda, own model") while `profile` is "auto". The choice is
reported with its reason. A later file wins over an earlier one and over its profile. The learning rate and the length
of answers in a profile of the embedded model hold for no other model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from areal_actors.calibration.calibrate import Calibration
from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.config import Config, merge_tables
from areal_actors.core.decoding import decode
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.core.known_models import fetched_folder
from areal_actors.core.layers import Key, Layer, is_stated
from areal_actors.core.problems import nearest, toml_value
from areal_actors.core.task_settings import WEIGHTED
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.generation.engines import describe_engine
from areal_actors.recipe.budget import budget_problems
from areal_actors.recipe.checks import RecipeProblem, problems
from areal_actors.recipe.device_map import device_problems, with_device_counts
from areal_actors.recipe.learning_rate import learning_rate_problems
from areal_actors.recipe.limits import with_derived
from areal_actors.recipe.measured import expected_lengths
from areal_actors.recipe.model_size import is_pretrained
from areal_actors.recipe.paths import beside
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import (
    NOT_IN_ENVIRONMENTS,
    NOT_ONLINE,
    NOT_WITH_EXAMPLES,
    ONLINE,
    ONLY_WITH_EXAMPLES,
    SERVING,
)
from areal_actors.recipe.source import read_file, read_override
from areal_actors.rewards import ARGUMENTS
from areal_actors.rewards.composition import expand_reward_list
from areal_actors.training.algorithms import AnyAlgorithm

DIRECTIVES = ("profile", "profiles")
OF_EMBEDDED_MODEL: tuple[Key, ...] = (("model",), ("trainer", "optimizer", "lr"), ("sampling", "max_tokens"))
"""Settings of a profile of the embedded model that hold for no other: its learning rate destroys a pretrained model in
a few steps."""
OWN_MODEL = "no cuda, own model"
FROM_EXAMPLES = frozenset(
    kind.__struct_config__.tag for kind in get_args(AnyAlgorithm) if kind.learns_from == "examples"
)
"""Names of the algorithms whose runs have no episodes."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe ready to run, with its chosen profile."""

    recipe: Recipe
    profile: str
    """Name of the profile; empty if the recipe has none, or none that fits."""
    reason: str
    cuda: CudaDevices
    """CUDA devices of the machine that it was resolved for."""
    calibration: Calibration | None = None
    """Measurements of this machine; None if there are none."""


Measure = Callable[[Recipe, CudaDevices], Calibration | None]
"""Measures this machine for a recipe; None where there is nothing to measure."""


class Condition(Config):
    """Keys of a profile besides those of a recipe."""

    when: Literal["cuda", "no cuda", "no cuda, own model", "named"] = "named"
    """The kind of machine it is for, and there a model that files or overrides name outside of profiles; `named`:
    chosen by name only."""


def load(
    files: Sequence[Path],
    overrides: Sequence[str],
    cuda: CudaDevices,
    *,
    serving: bool = False,
    measure: Measure | None = None,
) -> Resolved:
    """Read, merge, choose the profile and validate.

    Later files override earlier ones, overrides (`a.b=value`) override all.
    With `serving` the recipe is for `areal-actors serve`: only model and gateway are validated. `measure` measures this
    machine for a valid recipe, for the settings that follow, and for what does not fit.

    Raises:
        RecipeError: lists all errors, one line each: file and line, the value found, the remedy.
    """
    over = _beside_files(_stack_layers(map(read_override, overrides)), files)
    layers = [*map(read_file, files), over]
    written = _stack_layers(layers)

    conditions, complaints = _conditions(written)
    if complaints:
        raise RecipeError("\n".join(complaints))
    profile, reason = _choose(written, conditions, cuda)
    stated = _merge_layers(layers, written, profile)
    layer = _with_implied(stated, serving=serving)
    recipe, complaints = decode(layer, Recipe, directives=DIRECTIVES)
    for other in conditions:
        if other != profile:
            _, more = decode(
                _with_implied(_merge_layers(layers, written, other), serving=serving), Recipe, directives=DIRECTIVES
            )
            complaints += [complaint for complaint in more if complaint not in complaints]
    if recipe is None or complaints:
        raise RecipeError("\n".join(complaints))
    recipe = msgspec.structs.replace(recipe, model=str(fetched_folder(recipe.model) or recipe.model))
    if serving:
        recipe = serving_recipe(recipe)
    counted = with_device_counts(recipe, stated.data, cuda)
    recipe = with_derived(counted, stated.data)
    _raise_for(
        problems(recipe, serving=serving)
        or [*device_problems(recipe, cuda), *(() if serving else learning_rate_problems(recipe))],
        layer,
    )
    calibration = measure(recipe, cuda) if measure is not None else None
    if calibration is not None:
        recipe = with_derived(counted, stated.data, calibration)
        _raise_for(
            problems(recipe, serving=serving) or budget_problems(recipe, calibration, expected_lengths(recipe)), layer
        )
    return Resolved(recipe=recipe, profile=profile, reason=reason, cuda=cuda, calibration=calibration)


def _raise_for(violations: Iterable[tuple[Key, str]], layer: Layer) -> None:
    """Raise RecipeError for problems, if there are any, each with its place."""
    sentences = [RecipeProblem(*problem).sentence(layer.place(problem[0])) for problem in violations]
    if sentences:
        raise RecipeError("\n".join(sentences))


def written_value(files: Sequence[Path], overrides: Sequence[str], key: Key) -> Any:
    """Returns a setting as files and overrides state it outside of profiles, not validated; None if they do not.

    Raises:
        RecipeError: a file or an override cannot be read.
    """
    value: Any = _stack_layers([*map(read_file, files), *map(read_override, overrides)]).data
    for name in key:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _stack_layers(layers: Iterable[Layer]) -> Layer:
    """Merge layers, later ones over earlier ones."""
    return reduce(lambda below, layer: layer.over(below), layers, Layer({}, {}))


def _beside_files(over: Layer, files: Sequence[Path]) -> Layer:
    """Returns overrides with paths that exist only beside a file, the last first, as seen from the current folder."""
    data = reduce(lambda data, file: beside(data, file.parent, unless_here=True), reversed(files), over.data)
    return Layer(data, over.places)


def _conditions(written: Layer) -> tuple[dict[str, Condition], list[str]]:
    """Returns the `when` of each profile, and complaints about the profiles as such."""
    profiles = written.data.get("profiles", {})
    place = written.place(("profiles",))
    if not isinstance(profiles, dict) or not all(isinstance(table, dict) for table in profiles.values()):
        return {}, [f"{place}: `profiles`: found {toml_value(profiles)}, expected tables; write `[profiles.NAME]`"]
    conditions: dict[str, Condition] = {}
    complaints: list[str] = []
    for name, table in profiles.items():
        layer = written.within("profiles", name)
        when = Layer({"when": table["when"]} if "when" in table else {}, layer.places)
        condition, more = decode(when, Condition, table=("profiles", name))
        more += [
            f"{layer.place((key,))}: `profiles.{name}.{key}`: found a profile within a profile; name profiles at"
            " the top"
            for key in DIRECTIVES
            if key in table
        ]
        complaints += more
        conditions[name] = condition or Condition()
    return conditions, complaints


def _choose(written: Layer, conditions: dict[str, Condition], cuda: CudaDevices) -> tuple[str, str]:
    """Returns the chosen profile and the reason."""
    wish: Any = written.data.get("profile", "auto")
    if wish != "auto":
        if wish not in conditions:
            hint = nearest(str(wish), ["auto", *conditions])
            raise RecipeError(f"{written.place(('profile',))}: `profile`: found no profile {toml_value(wish)}; {hint}")
        return wish, f"named by {written.place(('profile',))}{_describe_omissions(written, wish)}"
    devices = "cuda" if cuda.count else "no cuda"
    if not cuda.count and _own_model(written) and any(condition.when == OWN_MODEL for condition in conditions.values()):
        devices = OWN_MODEL
    fitting = [name for name, condition in conditions.items() if condition.when == devices]
    if len(fitting) > 1:
        raise RecipeError(
            f'{written.place(("profiles", fitting[1]))}: `profiles`: found `when = "{devices}"` in'
            f" {' and '.join(fitting)}, and both fit this machine; keep it in one of them, or set `profile = …`"
        )
    if fitting:
        return fitting[0], f"{cuda.reason}{_describe_omissions(written, fitting[0])}"
    return "", f'no profile has `when = "{devices}"` ({cuda.reason})' if conditions else "the recipe has no profiles"


def _own_model(written: Layer) -> str:
    """Returns the model that files and overrides name outside of profiles.

    Empty if that is none, or one of the embedded kind.
    """
    model = written.data.get("model", EMBEDDED)
    return model if isinstance(model, str) and is_pretrained(model) else ""


def _foreign_settings(written: Layer, profile: str) -> list[Key]:
    """Returns settings of an embedded model's profile that do not apply: another model is named outside of it."""
    chosen = written.within("profiles", profile)
    if not _own_model(written) or chosen.data.get("model") != EMBEDDED:
        return []
    return [key for key in OF_EMBEDDED_MODEL if is_stated(chosen.data, key)]


def _describe_omissions(written: Layer, profile: str) -> str:
    """Returns which settings of the profile do not apply, as a suffix of its reason; empty if all do."""
    names = [".".join(key) for key in _foreign_settings(written, profile) if key != ("model",)]
    if not names:
        return ""
    return (
        f"; without {' and '.join(names)} of [profiles.{profile}], which are for the embedded model and not for"
        f" {_own_model(written)}"
    )


def _merge_layers(layers: Sequence[Layer], written: Layer, profile: str) -> Layer:
    """Merge the files and the overrides, `written` when merged as they are, each with its part of the profile over it.

    So a later file wins over the profile of an earlier one.
    """
    foreign = _foreign_settings(written, profile) if profile else []
    if profile and _own_model(written) and written.data["profiles"][profile].get("when") == OWN_MODEL:
        foreign.append(("model",))
    stated = Layer({}, {})
    for layer in layers:
        chosen = layer.within("profiles", profile).without("when") if profile else Layer({}, {})
        for key in foreign:
            chosen = chosen.without_setting(key)
        is_override = layer is layers[-1]
        stated = layer.over(chosen.over(stated)) if is_override else chosen.over(layer.over(stated))
    return _with_reward_list(stated.without(*DIRECTIVES))


def _with_reward_list(stated: Layer) -> Layer:
    """Returns the settings with lists of rewards, of a task or a source, as the parts of `weighted`."""
    task = stated.data.get("task")
    if not isinstance(task, dict):
        return stated
    expanded = _expand_rewards(task)
    if isinstance(sources := task.get("mix"), list):
        expanded = {**expanded, "mix": [_expand_rewards(one) if isinstance(one, dict) else one for one in sources]}
    return Layer({**stated.data, "task": expanded}, stated.places)


def _expand_rewards(task: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(rewards := task.get("reward"), list):
        return task
    options = expand_reward_list(rewards, task.get("reward_options", {}), ARGUMENTS)
    return {**task, "reward": WEIGHTED, "reward_options": options}


def _with_implied(stated: Layer, *, serving: bool) -> Layer:
    """Add below the stated settings what follows from others.

    That is the placement of actors, without those that a run without agents or episodes does not need, what an
    engine implies, and GRPO as the algorithm.
    """
    task, algorithm = stated.data.get("task"), stated.data.get("algorithm")
    counts: dict[str, int] = {}
    implied: dict[str, Any] = {}
    if isinstance(algorithm, dict) and algorithm.get("name") in FROM_EXAMPLES and not serving:
        counts = dict.fromkeys(NOT_WITH_EXAMPLES, 0) | dict.fromkeys(ONLY_WITH_EXAMPLES, 1)
    elif isinstance(task, dict) and task.get("agent") == ONLINE:
        counts, implied = dict.fromkeys(NOT_ONLINE, 0), {"evaluation": {"tasks": 0}}
    elif isinstance(task, dict) and task.get("environment"):
        counts, implied = dict.fromkeys(NOT_IN_ENVIRONMENTS, 0), {"task": {"runner": "subprocess"}}
    if isinstance(algorithm, dict) and "name" not in algorithm:
        implied["algorithm"] = {"name": "grpo"}
    generation = stated.data.get("generation")
    engine = generation.get("engine") if isinstance(generation, dict) else None
    if isinstance(engine, str):
        implied |= describe_engine(engine).implied
    counted = {name: {"count": count} for name, count in counts.items()}
    return stated.over(Layer({"actors": merge_tables(msgspec.to_builtins(ActorsSettings()), counted), **implied}, {}))


def serving_recipe(recipe: Recipe) -> Recipe:
    """Returns the recipe with only the actors that serve its model."""
    placements = msgspec.structs.asdict(recipe.actors)
    gone = {
        name: msgspec.structs.replace(placement, count=0)
        for name, placement in placements.items()
        if name not in SERVING
    }
    return msgspec.structs.replace(recipe, actors=msgspec.structs.replace(recipe.actors, **gone))
