"""Settings that a fork may change, and what of the recorded run stays valid under each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.decoding import decode
from areal_actors.core.errors import RecipeError
from areal_actors.core.layers import Key, Layer
from areal_actors.core.problems import toml_value
from areal_actors.recipe.checks import problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import read_override
from areal_actors.recovery.resume import MAY_CHANGE

Reuse = Literal["batch", "episodes", "nothing"]
"""Events after a checkpoint that stay valid: the batch that was trained next and all episodes of weights up to the
checkpoint's; the episodes alone, of which other batches may be formed; or nothing."""

_WEIGHTS = "the weights are those of the checkpoint"
_OPTIMIZER = "the checkpoint has the state of the other optimizer"
_TASKS = "groups are numbered by the tasks of the recorded run"
_RESTART = f"start another run from the checkpoint, `{COMMAND} run RECIPE model=%s`, or leave it out"
FIXED: Mapping[Key, str] = {
    ("model",): _WEIGHTS,
    ("warm_start",): _WEIGHTS,
    ("trainer", "dtype"): _WEIGHTS,
    ("trainer", "published_dtype"): _WEIGHTS,
    ("trainer", "lora"): _WEIGHTS,
    ("trainer", "optimizer", "name"): _OPTIMIZER,
    ("algorithm", "group_size"): "groups that have begun have the other size",
    ("algorithm", "critic"): "the checkpoint has the critic of the other run",
    ("task", "mix"): _TASKS,
    ("task", "curriculum"): _TASKS,
    ("task", "environment"): _TASKS,
    ("task", "environment_args"): _TASKS,
    ("task", "environment_tasks"): _TASKS,
    ("bus",): "the bus is that of the run",
    ("policies",): "policies have logs of their own",
    ("policy",): "policies have logs of their own",
    ("autoscale",): "workers of other hosts belong to the run",
    ("run",): "--name names the fork",
    ("folder",): "a fork lies beside its run",
}
"""Settings that cannot change in a fork, with the reason."""
OF_ALL_ALGORITHMS = ("group_size", "critic", "role_field", "baseline_decay")
"""Settings that mean the same in every algorithm that has them."""
KEEPS_BATCH = frozenset({*MAY_CHANGE, ("algorithm",), ("trainer",)})
KEEPS_EPISODES = frozenset(
    {
        *(("batcher",), ("staleness_gate",), ("autopilot",), ("evaluation",), ("steps",), ("trainer", "batch_size")),
        *(("algorithm", name) for name in ("role_field", "baseline_decay")),
        *(("task", name) for name in ("turn_discount", "branch_credit", "baseline_over")),
    }
)
"""Settings of the decisions on recorded episodes."""


class ForkedRecipe(msgspec.Struct, frozen=True):
    """The recipe of a fork."""

    recipe: Recipe
    changed: str
    """Changed settings, as a sentence; empty if there are none."""
    reuse: Reuse


def fork_recipe(recorded: Recipe, overrides: Sequence[str], name: str, checkpoint: str) -> ForkedRecipe:
    """Returns the recipe of a fork of this name.

    Args:
        recorded: recipe of the recorded run.
        overrides: `KEY=VALUE` of each changed setting.
        name: of the fork.
        checkpoint: path of the checkpoint, for messages.

    Raises:
        RecipeError: an override is invalid, or its setting cannot change in a fork.
    """
    over = Layer({}, {})
    for override in overrides:
        over = read_override(override).over(over)
    before: dict[str, Any] = msgspec.to_builtins(recorded)
    recipe, complaints = decode(over.over(Layer(_base_for(before, over), {})), Recipe)
    if recipe is None or complaints:
        raise RecipeError("\n".join(complaints))
    after: dict[str, Any] = msgspec.to_builtins(recipe)
    changed = list_changed(before, after)
    if refused := [_refuse(over, key, before, after, checkpoint) for key in changed if is_within(key, FIXED)]:
        raise RecipeError("\n".join(refused))
    _refuse_other_kind(recorded, recipe)
    if violations := problems(msgspec.structs.replace(recipe, run=name)):
        raise RecipeError("\n".join(problem.sentence(over.place(problem.key)) for problem in violations))
    sentence = ", ".join(f"{'.'.join(key)} = {toml_value(look_up(after, key))}" for key in changed)
    return ForkedRecipe(msgspec.structs.replace(recipe, run=name), sentence, reuse_under(changed))


def reuse_under(changed: Sequence[Key]) -> Reuse:
    """Returns what of the recorded run stays valid when these settings change."""
    if any(not is_within(key, KEEPS_BATCH) and not is_within(key, KEEPS_EPISODES) for key in changed):
        return "nothing"
    return "episodes" if any(is_within(key, KEEPS_EPISODES) for key in changed) else "batch"


def is_within(key: Key, tables: Mapping[Key, str] | frozenset[Key]) -> bool:
    """Returns True if a setting is one of these, or in one of these tables."""
    return any(key[:length] in tables for length in range(1, len(key) + 1))


def list_changed(before: Mapping[str, Any], after: Mapping[str, Any], table: Key = ()) -> list[Key]:
    """Returns the keys of settings that differ; of an algorithm of another name, that name alone."""
    changed: list[Key] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if name == "algorithm" and old["name"] != new["name"]:
                changed.append(("algorithm", "name"))
                changed += [("algorithm", key) for key in OF_ALL_ALGORITHMS if old.get(key) != new.get(key)]
            else:
                changed += list_changed(old, new, (*table, name))
        elif old != new:
            changed.append((*table, name))
    return changed


def look_up(data: Any, key: Key) -> Any:
    """Returns the value of a setting; None if there is none."""
    for name in key:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _base_for(recorded: dict[str, Any], over: Layer) -> dict[str, Any]:
    """Returns the recorded recipe; if another algorithm is named, without the recorded one's own settings."""
    algorithm = recorded["algorithm"]
    if over.data.get("algorithm", {}).get("name", algorithm["name"]) == algorithm["name"]:
        return recorded
    return recorded | {
        "algorithm": {name: algorithm[name] for name in ("name", "group_size", "minibatches") if name in algorithm}
    }


def _refuse(over: Layer, key: Key, before: Any, after: Any, checkpoint: str) -> str:
    table = next(table for table in FIXED if key[: len(table)] == table)
    remedy = "leave it out" if table in {("run",), ("folder",)} else _RESTART % checkpoint
    return (
        f"{over.place(key)}: `{'.'.join(key)}`: found {toml_value(look_up(after, key))} for a fork of a run that has"
        f" {toml_value(look_up(before, key))}; this setting cannot change in a fork, because {FIXED[table]};"
        f" {remedy}"
    )


def _refuse_other_kind(recorded: Recipe, recipe: Recipe) -> None:
    if recorded.learns_from_examples() != recipe.learns_from_examples() or (
        recipe.learns_from_examples() and recorded.examples() != recipe.examples()
    ):
        raise RecipeError(
            "`algorithm.name`: this algorithm does not learn from what the run learned from; start another run"
        )
    if recorded.is_online() != recipe.is_online():
        raise RecipeError("`task.agent`: agents of a fork are external where those of its run are; leave it out")
