"""Validates the reward of a recipe and its options.

Cheap checks only: nothing is loaded; functions in named files are checked elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_actors.core.decoding import decode
from areal_actors.core.durable_files import read_json
from areal_actors.core.installed_parts import installed_parts
from areal_actors.core.layers import Key, Layer
from areal_actors.core.named_code import dotted_parts, named_code_problems
from areal_actors.core.part_problems import part_problems
from areal_actors.core.problems import Problems, is_installed, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import WEIGHTED, TaskSettings
from areal_actors.rewards import MODEL, REWARDS
from areal_actors.rewards.composition import ONLY_IF, OWN_KEYS, RULE
from areal_actors.rewards.settings import RewardModelSettings

PACKAGES = {"json_schema": "jsonschema", "math": "math_verify"}
"""Optional packages that rules need."""
OPTIONS: Key = ("task", "reward_options")
SPARE_SECONDS = 1.0
"""Minimum time between a rule's own timeout and the deadline at which its process is killed."""


def find_problems(task: TaskSettings, recipe: object, facts: RunFacts) -> Problems:
    """Yields every problem that keeps the reward, and the function that accepts scored episodes, from being loaded."""
    if not facts.has_episodes() or facts.is_online:
        return
    if (accept := task.should_accept) and not dotted_parts(accept):
        yield from named_code_problems(("task", "should_accept"), accept, "function", "accept.py:should_accept")
    if facts.plays_environment:
        return
    reward, options = task.reward, task.reward_options
    if ":" in reward and not reward.startswith(MODEL):
        yield from named_code_problems(("task", "reward"), reward, "function", "rewards.py:reward")
    if reward.startswith(MODEL):
        yield from _model(task, Path(reward.removeprefix(MODEL)).expanduser())
        _, complaints = decode(Layer(dict(options), {}), RewardModelSettings)
        yield from ((OPTIONS, complaint) for complaint in complaints)
    elif reward == WEIGHTED:
        yield from _check_weights(task, recipe, options)
    elif ":" not in reward:
        yield from _rule(task, recipe, reward, options, ("task", "reward"), OPTIONS)


def _rule(task: TaskSettings, recipe: object, reward: str, options: Mapping[str, Any], key: Key, at: Key) -> Problems:
    """Check a rule and its options.

    It must time out before its process is killed: it then returns 0 instead of failing.
    """
    fault = f"found {toml_value(reward)}"
    installed = installed_parts("reward")
    if reward not in REWARDS and reward not in installed:
        known = (*REWARDS, WEIGHTED, *installed)
        yield key, f"{fault}; {nearest(reward, known)}, or write `path.py:function`, or `{MODEL}folder`"
        return
    if reward not in REWARDS:
        yield from part_problems(installed[reward], recipe, options, key, at)
        return
    if (package := PACKAGES.get(reward)) and not is_installed(package):
        install = "pip install 'areal-actors[rewards]' (in a clone: .venv/bin/pip install -e '.[rewards]')"
        yield key, f"{fault}, but {package} is not installed; {install}"
        return
    rule, complaints = decode(Layer(dict(options), {}), REWARDS[reward])
    yield from ((at, complaint) for complaint in complaints)
    seconds, deadline = getattr(rule, "seconds", 0.0), task.reward_timeout_seconds
    if seconds and seconds + SPARE_SECONDS > deadline:
        killed = f"found {seconds:g}, but the process is killed after task.reward_timeout_seconds = {deadline:g}"
        yield (*at, "seconds"), f"{killed}; write at most {max(deadline - SPARE_SECONDS, 0):g}, or raise the deadline"


def _check_weights(task: TaskSettings, recipe: object, options: Mapping[str, Any]) -> Problems:
    if not options:
        yield (
            OPTIONS,
            "found none, but `weighted` adds up the rewards listed there; write for example `math = { weight = 1.0 }`",
        )
    for name, table in options.items():
        key = (*OPTIONS, name)
        weight = table.get("weight") if isinstance(table, Mapping) else None
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            yield key, f"found {toml_value(table)}; write a table with a finite weight, as in `{{ weight = 1.0 }}`"
        elif (rule := table.get(RULE, name)) == WEIGHTED or rule.startswith(MODEL):
            yield key, "found a reward that cannot be part of a sum; name rules and functions only"
        elif (gate := table.get(ONLY_IF, "")) and (gate not in options or gate == name):
            yield (*key, ONLY_IF), f"found {toml_value(gate)}; {nearest(gate, tuple(options.keys() - {name}))}"
        elif ":" not in rule:
            own = {option: value for option, value in table.items() if option not in OWN_KEYS}
            yield from _rule(task, recipe, rule, own, key, key)


def _model(task: TaskSettings, folder: Path) -> Problems:
    key, name, fault = ("task", "reward"), str(folder), f"found {toml_value(task.reward)}"
    if not folder.is_dir():
        if name.count("/") != 1 or not all(name.split("/")) or name.startswith((".", "~", "runs/")):
            remedy = "train one first, as with recipes/reward_model.toml, or name a hub id"
            yield key, f"{fault}, but there is no such folder (looked beside the recipe and in {Path.cwd()}); {remedy}"
        return
    if not (folder / "config.json").is_file():
        yield key, f"{fault}, but no config.json in that folder; name a Hugging Face model folder"
        return
    kinds = read_json(folder / "config.json").get("architectures") or []
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        remedy = "name one ending in ForSequenceClassification, as recipes/reward_model.toml trains"
        yield key, f"{fault}, whose model is {', '.join(map(str, kinds)) or 'of no kind'}; {remedy}"
