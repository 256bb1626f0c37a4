"""Lists and plays tasks of a `verifiers` environment that has a dataset and a rubric.

`load_environment` returns such a one in the interface before 0.2. An episode is the environment's own rollout of one
row of its dataset, with the episode's session as the model's endpoint; the rubric's weighted sum is the reward, and the
values of its functions are metrics.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import verifiers as vf
from listing import write_tasks
from openai import AsyncOpenAI
from verifiers.clients import OpenAIChatCompletionsClient

MODEL = "default"
SHOWN_CHARACTERS = 2000
COLUMNS = ("prompt", "answer", "info", "task")
"""Columns of a row with which it is played, besides its number."""

_faults: ContextVar[list[str]] = ContextVar("faults")
"""Errors that functions of the rubric raised in this episode: verifiers counts such a function as 0.0."""


class RolloutFailed(Exception):
    """The environment did not produce a scored episode."""


def load(environment: str, args: Mapping[str, Any]) -> vf.Environment:
    """Load an environment: the name of an installed package, the folder of one, or a module's file.

    Args:
        environment: name, folder or file.
        args: keyword arguments of its `load_environment`.

    Raises:
        ValueError: its rewards compare the episodes of a group, or are not computed.
        Exception: whatever the environment raises.
    """
    place = Path(environment).resolve()
    if place.is_dir() or place.suffix == ".py":
        sys.path.insert(0, str(place.parent))
        environment = place.name.removesuffix(".py")
    loaded = vf.load_environment(environment, **args)
    if getattr(loaded, "requires_group_rollouts", False):
        raise ValueError(
            "functions of its rubric compare the episodes of a group, and episodes are played one by one; leave"
            " them out"
        )
    if not getattr(loaded, "score_rollouts", True):
        raise ValueError("it does not score its rollouts (score_rollouts = False), so that episodes have no reward")
    for rubric in _rubrics(loaded):
        rubric.funcs[:] = [_report_errors(function) for function in rubric.funcs]
    return loaded


def _rubrics(environment: vf.Environment) -> Iterator[Any]:
    """All rubrics of an environment, of its parts and of groups of rubrics."""
    waiting = [environment.rubric, *(part.rubric for part in getattr(environment, "envs", ()))]
    while waiting:
        rubric = waiting.pop()
        yield rubric
        waiting += getattr(rubric, "rubrics", ())


def _report_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of a rubric, whose errors are kept for the episode."""

    @functools.wraps(function)
    async def call_function(*arguments: Any, **named: Any) -> Any:
        try:
            value = function(*arguments, **named)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            name = getattr(function, "__name__", repr(function))
            _faults.get([]).append(f"{name} of its rubric raised {type(error).__name__}: {error}"[:SHOWN_CHARACTERS])
            raise

    return call_function


# ---------------------------------------------------------------- tasks


def rows(environment: vf.Environment, limit: int) -> Iterator[dict[str, Any]]:
    """The first `limit` rows of the environment's dataset, in its order."""
    for row in itertools.islice(environment.get_dataset(), limit):
        task = {name: row[name] for name in COLUMNS if row.get(name) is not None}
        content = json.dumps(task, sort_keys=True)
        key = hashlib.sha256(content.encode()).hexdigest()
        yield {
            "key": key,
            "question": _question(task.get("prompt")),
            "task": {**task, "example_id": row.get("example_id", 0)},
        }


def _question(prompt: Any) -> str:
    """The text of the last message of a prompt."""
    last = prompt[-1].get("content") if isinstance(prompt, list) and prompt else prompt
    return last if isinstance(last, str) else json.dumps(last)


def list_tasks(request: Mapping[str, Any]) -> None:
    """Write the tasks of an environment to a file; whatever it raises ends the program with its text."""
    write_tasks(request, load, rows)


# ---------------------------------------------------------------- episodes


class RubricAgent:
    """Plays one row of the environment's dataset per episode."""

    def __init__(self, environment: str, args: Mapping[str, Any], *, rewards_last_call: bool = False) -> None:
        """Load the environment; the reward is the episode's, so that `rewards_last_call` changes nothing."""
        self.environment = load(environment, args)

    async def run(self, task: Mapping[str, Any], *, base_url: str, api_key: str) -> dict[str, Any]:
        """Play a task; returns {"reward", "metrics"}.

        Raises:
            RolloutFailed: the environment, a function of its rubric or a model call failed, or there is no reward.
        """
        faults: list[str] = []
        _faults.set(faults)
        async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            endpoint = OpenAIChatCompletionsClient(client)
            played = await self.environment.run_rollout(dict(task["task"]), endpoint, MODEL, {}, max_retries=0)
        if error := played.get("error"):
            raise RolloutFailed(str(error)[:SHOWN_CHARACTERS])
        if faults:
            raise RolloutFailed("; ".join(faults))
        if played.get("reward") is None:
            raise RolloutFailed("the environment gave the episode no reward")
        return {
            "reward": float(played["reward"]),
            "metrics": {name: float(value) for name, value in (played.get("metrics") or {}).items()},
        }
