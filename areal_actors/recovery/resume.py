"""Selects the run to resume, and its recipe with overrides of settings that may change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.decoding import decode
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.free_ports import STABLE_PORTS
from areal_actors.core.layers import Key, Layer
from areal_actors.core.problems import toml_value
from areal_actors.folder.run_folder import RunFolder, find_run
from areal_actors.recipe.checks import problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import read_override
from areal_actors.training.checkpoint_store import CHECKPOINTS, LEFT, CheckpointStore

TRAINER_MAY_CHANGE = (
    *(
        "compile",
        "device",
        "devices",
        "logprob_check_sequences",
        "max_skipped_steps",
        "memory_fraction",
        "microbatch_tokens",
    ),
    *("pipeline_parallel", "prefix_sharing", "rank_timeout_seconds", "ranks", "ranks_address", "recompute_activations"),
    *("retaken_steps", "sequence_parallel", "tensor_parallel", "threads", "weights_folder"),
)
MAY_CHANGE: frozenset[Key] = frozenset(
    {
        *(
            (table,)
            for table in (
                "actors",
                "autopilot",
                "chaos",
                "checkpoint",
                "disk",
                "gateway",
                "generation",
                "hosts",
                "log",
                "supervisors",
                "track",
                "watchdog",
            )
        ),
        *(("trainer", name) for name in TRAINER_MAY_CHANGE),
        *(("task", name) for name in ("processes", "reward_timeout_seconds", "timeout_seconds")),
        *(
            ("bus", name)
            for name in ("certificate", "certificate_key", "host", "lease_seconds", "objects_port", "port")
        ),
        ("record_actor_io",),
    }
)
"""Settings of placement and speed, not of learning: the log holds decisions made under the other settings."""


def run_to_resume(name: str, folder: Path) -> RunFolder:
    """Returns the folder of the run of this name, or of the latest run if the name is empty.

    Raises:
        SetupError: there is none, it is live, or it cannot be resumed.
    """
    run_path, hint = find_run(name, folder)
    if run_path is None:
        place = folder.absolute()
        raise SetupError(f"{place} has no run '{name}'; {hint}" if name else f"{place}: {hint}; see --folder")
    if process := run_path.live_supervisor():
        raise SetupError(f"run '{run_path.path.name}' is running ({process}); stop it first")
    return run_path


@contextmanager
def in_working_folder(folder: RunFolder) -> Iterator[None]:
    """Be in the folder in which a run was started, since its recipe names files from there."""
    working = folder.working_folder()
    if working == Path.cwd():
        yield
        return
    sys.stderr.write(f"run '{folder.path.name}' was started in {working}: relative paths are meant from there\n")
    with chdir(working):
        yield


def recipe_to_resume(folder: RunFolder, overrides: Sequence[str]) -> tuple[Recipe, str]:
    """Returns the recipe of the run with these overrides, and a text with the changed settings.

    Raises:
        RecipeError: an override is invalid, or its setting may not change.
        SetupError: the run's recipe cannot be read, or it trains nothing.
    """
    before = read_kept_recipe(folder)
    over = Layer({}, {})
    for override in overrides:
        over = read_override(override).over(over)
    data = msgspec.to_builtins(before)
    recipe, complaints = decode(over.over(Layer(data, {})), Recipe)
    if recipe is None or complaints:
        raise RecipeError("\n".join(complaints))
    if refused := [
        key for key in _keys(over.data) if not any(key[: len(allowed)] == allowed for allowed in MAY_CHANGE)
    ]:
        raise RecipeError("\n".join(_refusal(over, key, data, folder) for key in refused))
    if violations := problems(recipe):
        raise RecipeError("\n".join(problem.sentence(over.place(problem.key)) for problem in violations))
    changed = [f"{'.'.join(key)} = {toml_value(_at(over.data, key))}" for key in _keys(over.data)]
    return recipe, f"with {', '.join(changed)}" if changed else ""


def read_kept_recipe(folder: RunFolder) -> Recipe:
    """Returns the recipe of a run that trains, with a free port for its gateway if it had one.

    Raises:
        SetupError: it cannot be read, or the run trains nothing.
    """
    try:
        recipe = folder.recipe()
    except (OSError, msgspec.MsgspecError) as error:
        raise SetupError(
            f"{folder.path / 'recipe.json'} cannot be read ({error}); was it written by another version?"
        ) from error
    if recipe.is_served():
        raise SetupError(f"'{folder.path.name}' was served, not trained; start `{COMMAND} serve` again")
    if recipe.gateway.port in STABLE_PORTS and not recipe.is_online():
        # The port was chosen automatically, and no external client depends on it.
        return msgspec.structs.replace(recipe, gateway=msgspec.structs.replace(recipe.gateway, port=0))
    return recipe


def checkpoint_to_resume(folder: RunFolder, name: str) -> int:
    """Returns the step of the checkpoint of this name, `step-N`; -1 if the name is empty.

    Raises:
        SetupError: there is no such checkpoint.
    """
    if not name:
        return -1
    kept = list_kept_steps(folder)
    step = int(number) if (number := name.removeprefix("step-")).isdecimal() else -1
    if step != 0 and step not in kept:
        steps = ", ".join(f"step-{kept_step}" for kept_step in kept)
        raise SetupError(
            f"run '{folder.path.name}' has no checkpoint '{name}'; kept: {steps or 'none'}. step-0 retrains all steps"
            " from the log"
        )
    return step


def set_later_aside(folder: RunFolder, step: int) -> None:
    """Rename the checkpoints after this step so that they are not used; none if -1."""
    store = CheckpointStore(folder.path)
    for later in list_kept_steps(folder):
        if 0 <= step < later:
            store.set_aside(f"{CHECKPOINTS}/step-{later}", LEFT)


def list_kept_steps(folder: RunFolder) -> list[int]:
    """Returns the steps of the checkpoints of a run, in order."""
    names = [path.name.removeprefix("step-") for path in folder.checkpoints.glob("step-*")]
    return sorted(int(name) for name in names if name.isdecimal())


def _keys(data: Mapping[str, Any], table: Key = ()) -> list[Key]:
    """Returns the keys of all settings, tables flattened."""
    keys: list[Key] = []
    for name, value in data.items():
        keys += _keys(value, (*table, name)) if isinstance(value, dict) and value else [(*table, name)]
    return keys


def _at(data: Any, key: Key) -> Any:
    for name in key:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _refusal(over: Layer, key: Key, before: Any, folder: RunFolder) -> str:
    allowed = ", ".join(sorted(".".join(name) for name in MAY_CHANGE))
    return (
        f"{over.place(key)}: `{'.'.join(key)}`: found {toml_value(_at(over.data, key))} for a run that began with"
        f" {toml_value(_at(before, key))}; this setting cannot change when a run is resumed. Start another run from a"
        f" checkpoint, model={folder.checkpoints / 'step-N'}, or change only: {allowed}"
    )
