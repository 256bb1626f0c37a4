"""Validates the judges of a recipe. Files and the environment are read; no model is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.errors import RecipeError
from areal_actors.core.layers import Key
from areal_actors.core.policy_settings import PolicySettings
from areal_actors.core.problems import Problems, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings
from areal_actors.rewards.judge.settings import ModelJudge, tables_of
from areal_actors.rewards.judge.verdict_forms import REASON

OPTIONS: Key = ("task", "reward_options")
HELD_OUT: Callable[[object], int] = attrgetter("evaluation.tasks")
"""Number of held-out tasks of a recipe."""
POLICIES: Callable[[object], Mapping[str, PolicySettings]] = attrgetter("policies")
"""Further models of a recipe."""


def find_problems(task: TaskSettings, actors: ActorsSettings, recipe: object, facts: RunFacts) -> Problems:
    """Yields what keeps a judge from being asked, or its verdicts from being compared."""
    if not facts.has_episodes() or facts.is_online or facts.plays_environment:
        return
    names: set[str] = set()
    for part, table in tables_of(task.reward, task.reward_options).items():
        key = (*OPTIONS, part) if part else OPTIONS
        judge = _convert(table)
        if judge is None:  # the rewards' own check names the field
            continue
        if judge.name in names:
            yield key, f"found a second judge called {toml_value(judge.name)}; give it a `name`, or write `judge:NAME`"
        names.add(judge.name)
        yield from _policy(key, judge, POLICIES(recipe)) if judge.policy else _model(key, judge)
        yield from _question(key, judge)
        yield from _calibration(key, judge)
        if judge.compares():
            yield from _comparison(key, judge, actors, HELD_OUT(recipe), facts)


def _policy(key: Key, judge: ModelJudge, policies: Mapping[str, PolicySettings]) -> Problems:
    """Yields what keeps a policy of the recipe from judging."""
    for name in ("url", "model", "key_variable"):
        if value := getattr(judge, name):
            yield (*key, name), f"found {toml_value(value)} beside a `policy`, which is its own model; leave one out"
    frozen = tuple(name for name, settings in policies.items() if settings.kind == "frozen")
    if judge.policy not in frozen:
        fault = f"found {toml_value(judge.policy)}, but [policies] has no frozen policy of this name"
        remedy = nearest(judge.policy, frozen) if frozen else f'write `[policies.{judge.policy}]` with kind = "frozen"'
        yield (*key, "policy"), f"{fault}; {remedy}"


def _convert(table: Mapping[str, Any]) -> ModelJudge | None:
    try:
        return msgspec.convert(dict(table), ModelJudge)
    except msgspec.ValidationError:
        return None


def _model(key: Key, judge: ModelJudge) -> Problems:
    if not judge.url:
        for name in ("model", "key_variable"):
            if value := getattr(judge, name):
                yield (*key, name), f"found {toml_value(value)} without a `url`; name the server, or leave it out"
        return
    if not judge.url.startswith(("http://", "https://")):
        yield (*key, "url"), f"found {toml_value(judge.url)}; write the base URL, as in `http://127.0.0.1:8000/v1`"
    if not judge.model:
        yield (*key, "model"), "found none; write the name that the server has for the judge's model"
    if judge.key_variable and not os.environ.get(judge.key_variable):
        name = judge.key_variable
        yield (*key, "key_variable"), f"found {toml_value(name)}, but this variable is not set; export {name}=…"


def _question(key: Key, judge: ModelJudge) -> Problems:
    try:
        judge.template()
    except RecipeError as error:
        yield (*key, "prompt"), f"found {toml_value(judge.prompt)}: {error}"
    if judge.criteria and judge.compares():
        remedy = "leave them out, or write them into a `prompt`"
        yield (*key, "criteria"), f"found some with method {toml_value(judge.method)}, which has one score; {remedy}"
    for name in judge.criteria:
        if not name or name == REASON or any(letter.isspace() or letter in '":' for letter in name):
            yield (*key, "criteria"), f"found {toml_value(name)}; write a word other than `{REASON}`, as in `style`"
    if not any(criterion.weight for criterion in judge.rubric().values()):
        yield (*key, "criteria"), "found weights of 0 only; give at least one criterion a weight"
    if judge.samples > 1 and not judge.temperature and not judge.compares():
        fault = f"found {judge.samples} with temperature 0, where all are alike"
        yield (*key, "samples"), f"{fault}; write `temperature = 1.0`, or leave it out"


def _calibration(key: Key, judge: ModelJudge) -> Problems:
    if judge.calibration and not Path(judge.calibration).expanduser().is_file():
        yield (
            (*key, "calibration"),
            f"found {toml_value(judge.calibration)}, but there is no such file (looked in {Path.cwd()})",
        )
    if judge.calibration and not (judge.url or judge.policy):
        fault = "found one, but the run's own engines judge only once the run has started"
        yield (*key, "calibration"), f"{fault}; give the judge a `url` or a `policy`, or leave it out"
    if judge.min_agreement and not judge.calibration:
        yield (
            (*key, "min_agreement"),
            f"found {judge.min_agreement:g} without `calibration`; name a file of labelled examples",
        )


def _comparison(key: Key, judge: ModelJudge, actors: ActorsSettings, held_out: int, facts: RunFacts) -> Problems:
    fault = f"found {toml_value(judge.method)}"
    if facts.group_size < 2:
        remedy = "raise algorithm.group_size, or write method rubric"
        yield (*key, "method"), f"{fault}, but a group has one answer (algorithm.group_size); {remedy}"
    if actors.reward_worker.count > 1:
        remedy = "set it to 1, which waits for any number of calls at once"
        yield (*key, "method"), f"{fault}, but answers of a group go to several reward workers; {remedy}"
    if judge.method == "pairwise" and held_out:
        fault = f"{fault}, but a held-out answer has none beside it to be compared with"
        yield (*key, "method"), f"{fault}; set evaluation.tasks = 0, or write method listwise"
