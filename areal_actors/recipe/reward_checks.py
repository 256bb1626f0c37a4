"""Validates the reward of a recipe and its options.

Cheap checks only: nothing is loaded; functions in named files are checked elsewhere.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal_actors.recipe.complaints import decode, nearest, toml_value
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import Key, Layer
from areal_actors.rewards import MODEL, REWARDS, WEIGHTED
from areal_actors.rewards.settings import RewardModelSettings
from areal_actors.tokenization.tokenizer import context_of, read_json

Found = Iterator[tuple[Key, str]]
"""Key, and a text with the value found and the remedy."""

PACKAGES = {"json_schema": "jsonschema", "math": "math_verify"}
"""Optional packages that rules need."""
OPTIONS: Key = ("task", "reward_options")
SPARE_SECONDS = 1.0
"""Minimum time between a rule's own timeout and the deadline at which its process is killed."""


def reward_problems(recipe: Recipe) -> Found:
    """Yields every problem that keeps the reward from being loaded, except missing functions in a named file."""
    reward, options = recipe.task.reward, recipe.task.reward_options
    if reward.startswith(MODEL):
        yield from _model(recipe, Path(reward.removeprefix(MODEL)).expanduser())
        _, complaints = decode(Layer(dict(options), {}), RewardModelSettings)
        yield from ((OPTIONS, complaint) for complaint in complaints)
    elif reward == WEIGHTED:
        yield from _weighted(recipe, options)
    else:
        yield from _named(recipe, reward, options, ("task", "reward"), OPTIONS)


def _named(recipe: Recipe, reward: str, options: Mapping[str, Any], key: Key, at: Key) -> Found:
    if ":" in reward:
        return
    if reward not in REWARDS:
        known = (*REWARDS, WEIGHTED)
        yield key, f"found {toml_value(reward)}; {nearest(reward, known)}, or write `path.py:function`, or `{MODEL}folder`"
    elif (package := PACKAGES.get(reward)) and importlib.util.find_spec(package) is None:
        yield (
            key,
            (
                f"found {toml_value(reward)}, but {package} is not installed; pip install 'areal-actors[rewards]' "
                "(in a clone: .venv/bin/pip install -e '.[rewards]')"
            ),
        )
    else:
        rule, complaints = decode(Layer(dict(options), {}), REWARDS[reward])
        yield from ((at, complaint) for complaint in complaints)
        yield from _rule_timeout(getattr(rule, "seconds", 0.0), recipe.task.reward_timeout_seconds, at)


def _rule_timeout(seconds: float, deadline: float, at: Key) -> Found:
    """Check that a rule times out before its process is killed: it then returns 0 instead of failing."""
    if seconds and seconds + SPARE_SECONDS > deadline:
        yield (
            (*at, "seconds"),
            (
                f"found {seconds:g}, but the process is killed after task.reward_timeout_seconds = {deadline:g}; "
                f"write at most {max(deadline - SPARE_SECONDS, 0):g}, or raise the deadline"
            ),
        )


def _weighted(recipe: Recipe, options: Mapping[str, Any]) -> Found:
    if not options:
        yield OPTIONS, "found none, but `weighted` adds up the rewards listed there; write for example `math = { weight = 1.0 }`"
    for name, table in options.items():
        key = (*OPTIONS, name)
        weight = table.get("weight") if isinstance(table, Mapping) else None
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            yield key, f"found {toml_value(table)}; write a table with a finite weight, as in `{{ weight = 1.0 }}`"
        elif name == WEIGHTED or name.startswith(MODEL):
            yield key, "found a reward that cannot be part of a sum; name rules and functions only"
        else:
            yield from _named(recipe, name, {option: value for option, value in table.items() if option != "weight"}, key, key)


def _model(recipe: Recipe, folder: Path) -> Found:
    key = ("task", "reward")
    if not folder.is_dir():
        if not _is_hub_id(str(folder)):
            yield (
                key,
                (
                    f"found {toml_value(recipe.task.reward)}, but there is no such folder (looked in {Path.cwd()}); "
                    "train one first, as with recipes/reward_model.toml, or name a hub id"
                ),
            )
        return
    if not (folder / "config.json").is_file():
        yield key, f"found {toml_value(recipe.task.reward)}, but no config.json in that folder; name a Hugging Face model folder"
        return
    config = read_json(folder / "config.json")
    kinds = config.get("architectures") or []
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        yield (
            key,
            (
                f"found {toml_value(recipe.task.reward)}, whose model is {', '.join(map(str, kinds)) or 'of no kind'}; "
                "name one ending in ForSequenceClassification, as recipes/reward_model.toml trains"
            ),
        )
    longest = context_of(folder)
    if longest and recipe.generation.max_model_len > longest:
        yield (
            ("generation", "max_model_len"),
            f"found {recipe.generation.max_model_len}, but the reward model reads at most {longest} tokens; write at most {longest}",
        )


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and all(name.split("/")) and not name.startswith((".", "~", "runs/"))
