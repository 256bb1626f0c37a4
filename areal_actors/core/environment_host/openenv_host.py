"""Lists the tasks of an OpenEnv environment and plays them; runs in the environment's own interpreter.

As a program it reads {"environment", "args", "limit", "path"} as JSON from standard input and writes the tasks to
`path`, one JSON object a line: {"key", "question", "task"}. A task is a seed: the environment is reset with it. As an
agent, `OpenEnvAgent` plays one task per episode through OpenEnv's client, in a session of the environment's server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))  # this program runs where the package is not installed

import httpx
from listing import write_tasks
from openenv.core import GenericEnvClient
from openenv_server import OpenEnvServer
from text_conversation import Step, play_conversation

DEFAULTS: dict[str, Any] = {
    "reset": {},
    "instructions": None,
    "observation": "",
    "action_pattern": r"Action:[ \t]*(.+)",
    "malformed_reward": None,
    "max_steps": 50,
    "first_seed": 0,
}
INVALID = "VALIDATION_ERROR"
"""Code of OpenEnv's error about an action that does not fit the environment's model of actions."""
SCHEMA_SECONDS = 30.0


class ServedEnvironment:
    """An OpenEnv environment whose observations are texts, and whose actions are read from texts."""

    def __init__(self, environment: str, args: Mapping[str, Any]) -> None:
        """Find the environment's server or start it.

        Args:
            environment: the URL of a server, a folder with an openenv.yaml, or `PATH.py:APP` of a file with the
                application that `create_app` makes.
            args: see DEFAULTS.

        Raises:
            ValueError: a setting is unknown or does not fit the environment.
            RuntimeError: the server did not start.
            httpx.HTTPError: no server answers at that URL.
        """
        if unknown := sorted(args.keys() - DEFAULTS.keys()):
            raise ValueError(f"environment_args has {unknown[0]!r}; expected some of {', '.join(DEFAULTS)}")
        self.args, self.environment = {**DEFAULTS, **args}, environment
        self.server = None if re.match(r"https?://", environment) else OpenEnvServer(environment)
        self.url = self.server.url if self.server else environment.rstrip("/")
        self.pattern = re.compile(self.args["action_pattern"])
        self.fields = self._action_fields()
        self.group_names = self._group_names()

    def _action_fields(self) -> dict[str, Any]:
        """Schemas of the action's fields by name, as the server describes them."""
        schema = httpx.get(f"{self.url}/schema", timeout=SCHEMA_SECONDS).raise_for_status().json()["action"]
        return {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}

    def _group_names(self) -> dict[str, int]:
        """Numbers of the pattern's groups by the fields that they are."""
        names, fields = dict(self.pattern.groupindex), list(self.fields)
        if not names and self.pattern.groups == 1 and len(fields) == 1:
            return {fields[0]: 1}
        if not names or names.keys() - self.fields.keys():
            raise ValueError(
                f"action_pattern {self.args['action_pattern']!r} does not fit the action, whose fields are"
                f" {', '.join(fields) or 'none'}; write a group for each, as in `(?P<{(fields or ['name'])[0]}>.+)`"
            )
        return names

    def first_answer(self) -> str:
        """An answer with which the environment can be tried; empty if none is known."""
        name, *others = self.fields
        field = self.fields[name]
        values = field.get("enum") or ([field["minimum"]] if "minimum" in field else [])
        answer = f"Action: {values[0]}" if values and not others else ""
        return answer if answer and self.action(answer) else ""

    def opening(self, observation: Any) -> str:
        """The first message: instructions and observation."""
        stated = self.args["instructions"]
        instructions = "End your answer with a line `Action: TEXT`." if stated is None else stated
        return f"{instructions}\n\n{self.text(observation)}".lstrip()

    def text(self, observation: Mapping[str, Any]) -> str:
        """An observation as a text.

        Raises:
            ValueError: the template of the recipe does not fit.
        """
        fields = {name: value for name, value in observation.items() if name != "metadata"}
        if not self.args["observation"]:
            (*texts,) = fields.values()
            return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else json.dumps(fields)
        try:
            return str(self.args["observation"].format(observation=observation)).strip()
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise ValueError(
                f"`observation` {self.args['observation']!r} does not fit the observation {observation!r}: {error!r}"
            ) from error

    def action(self, answer: str) -> dict[str, Any]:
        """The fields of an answer's action, by the last match of the pattern; empty if it has none."""
        *_, match = (None, *self.pattern.finditer(answer))
        return {name: match[group].strip() for name, group in self.group_names.items() if match[group]} if match else {}

    async def reset(self, client: Any, seed: int) -> str:
        """Begin an episode; returns its first message."""
        return self.opening((await client.reset(seed=seed, **self.args["reset"])).observation)

    async def take_step(self, client: Any, answer: str) -> Step | None:
        """The step of an answer; None if it is no action, for the pattern or for the environment's model of actions.

        Raises:
            RuntimeError: the environment failed.
        """
        if not (action := self.action(answer)):
            return None
        try:
            result = await client.step(action)
        except RuntimeError as error:
            if INVALID in str(error):
                return None
            raise
        return Step(self.text(result.observation), float(result.reward or 0.0), result.done)

    def close(self) -> None:
        """End the server, if it was started here."""
        if self.server:
            self.server.close()


# ---------------------------------------------------------------- tasks


def rows(environment: ServedEnvironment, limit: int) -> Iterator[dict[str, Any]]:
    """The tasks of `limit` seeds, with their first messages; the environment is closed behind the last."""
    first = environment.args["first_seed"]
    seeds = range(first, first + limit)
    openings = asyncio.run(_openings(environment, seeds))
    for seed, opening in zip(seeds, openings, strict=True):
        content = json.dumps([environment.environment, environment.args["reset"], seed], sort_keys=True)
        row = {"key": hashlib.sha256(content.encode()).hexdigest(), "question": opening, "task": {"seed": seed}}
        yield {**row, "answer": environment.first_answer()}
    environment.close()


async def _openings(environment: ServedEnvironment, seeds: range) -> list[str]:
    async with GenericEnvClient(base_url=environment.url) as client:
        return [await environment.reset(client, seed) for seed in seeds]


def list_tasks(request: Mapping[str, Any]) -> None:
    """Write the tasks of an environment to a file; whatever it raises ends the program with its text."""
    write_tasks(request, ServedEnvironment, rows)


# ---------------------------------------------------------------- episodes


class OpenEnvAgent:
    """Plays one seed of the environment per episode, in a session of its own."""

    def __init__(self, environment: str, args: Mapping[str, Any], *, rewards_last_call: bool = False) -> None:
        """Find the environment's server or start it.

        `rewards_last_call` gives each call the reward of its own step, which a turn discount sums.
        """
        self.environment = ServedEnvironment(environment, args)
        self.by_step = rewards_last_call

    async def run(self, task: Mapping[str, Any], *, base_url: str, api_key: str) -> dict[str, Any]:
        """Play a task; returns {"reward" or "rewards", "metrics"}.

        Raises:
            NoActionInAnswer: an answer is no action, and `malformed_reward` is not declared.
            RuntimeError: the environment failed, or its server has no session left.
            openai.APIError: a model call failed.
        """
        environment, args = self.environment, self.environment.args
        async with GenericEnvClient(base_url=environment.url) as client:
            return await play_conversation(
                await environment.reset(client, task["task"]["seed"]),
                lambda answer: environment.take_step(client, answer),
                max_steps=args["max_steps"],
                malformed_reward=args["malformed_reward"],
                actions=[str(value) for field in self.environment.fields.values() for value in field.get("enum", ())],
                by_step=self.by_step,
                base_url=base_url,
                api_key=api_key,
            )


if __name__ == "__main__":
    list_tasks(json.load(sys.stdin))
