"""Lists the tasks of a Gymnasium environment and plays them; runs in the environment's own interpreter.

As a program it reads {"environment", "args", "limit", "path"} as JSON from standard input and writes the tasks to
`path`, one JSON object a line: {"key", "question", "task"}. A task is a seed: the environment is reset with it. As an
agent, `GymnasiumAgent` plays one task per episode: observations are messages, the model's answers are actions, and the
rewards are those of the environment's steps.
"""

from __future__ import annotations

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

import gymnasium
from listing import write_tasks
from text_conversation import Step, play_conversation

DEFAULTS: dict[str, Any] = {
    "make": {},
    "instructions": "",
    "observation": "",
    "actions": [],
    "action_pattern": r"Action:[ \t]*(.+)",
    "malformed_reward": None,
    "max_steps": 50,
    "first_seed": 0,
}
COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
COLORED = re.compile(r"\x1b\[(\d+)[\d;]*m(.*?)\x1b\[0m", re.DOTALL)


class TextEnvironment:
    """A Gymnasium environment whose observations are texts, and whose actions are read from texts."""

    def __init__(self, environment: str, args: Mapping[str, Any]) -> None:
        """Make the environment.

        Args:
            environment: an id, as `FrozenLake-v1`, `module:ID`, or `PATH.py:ID` of a file that registers it.
            args: see DEFAULTS.

        Raises:
            ValueError: a setting is unknown or does not fit the environment.
            Exception: whatever Gymnasium or the environment raises.
        """
        if unknown := sorted(args.keys() - DEFAULTS.keys()):
            raise ValueError(f"environment_args has {unknown[0]!r}; expected some of {', '.join(DEFAULTS)}")
        self.args = {**DEFAULTS, **args}
        self.environment = environment
        self.env = _make(environment, dict(self.args["make"]))
        self.template = self.args["observation"] or ("{render}" if self.env.render_mode == "ansi" else "{observation}")
        self.pattern = re.compile(self.args["action_pattern"])
        if self.pattern.groups != 1:
            raise ValueError(f"action_pattern {self.args['action_pattern']!r} needs one group, with the action")
        self.actions = self._action_names()

    def _action_names(self) -> dict[str, Any]:
        """Actions by name; empty if any text of the action space is an action."""
        space, names = self.env.action_space, [str(name) for name in self.args["actions"]]
        if isinstance(space, gymnasium.spaces.Text):
            if names:
                raise ValueError(f"actions: the environment takes texts as actions ({space}); leave them out")
            return {}
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise TypeError(f"its action space is {space}; wrap it so that its actions are Discrete or Text")
        numbers = range(int(space.start), int(space.start + space.n))
        if names and len({name.casefold() for name in names}) != len(numbers):
            raise ValueError(
                f"actions names {len(names)} actions; the environment has {len(numbers)}, from {numbers[0]} to"
                f" {numbers[-1]}"
            )
        return dict(zip([name.casefold() for name in names] or map(str, numbers), numbers, strict=True))

    def opening(self, seed: int) -> str:
        """Reset with a seed; returns the first message: instructions and observation."""
        observation, info = self.env.reset(seed=seed)
        names = ", ".join(str(name) for name in self.args["actions"] or self.actions)
        default = (
            f"The actions are {names}. End your answer with a line `Action: NAME`."
            if names
            else "End your answer with a line `Action: TEXT`."
        )
        return f"{self.args['instructions'] or default}\n\n{self.text(observation, info)}"

    def first_answer(self) -> str:
        """An answer that names the first action, with which the environment can be tried.

        It is empty if its form is not known.
        """
        names = [str(name) for name in self.args["actions"]] or list(self.actions)
        answer = f"Action: {names[0]}" if names else ""
        return answer if answer and self.action(answer)[0] else ""

    def text(self, observation: Any, info: Any) -> str:
        """An observation as a text.

        Raises:
            ValueError: the template of the recipe does not fit.
        """
        render = self.env.render() if "{render" in self.template else ""
        if "{render" in self.template and not isinstance(render, str):
            raise ValueError(
                f"`observation` has {{render}}, but render_mode {self.env.render_mode!r} renders no text; leave it out"
            )
        try:
            return self.template.format(observation=observation, info=info, render=_named_colors(render)).strip()
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise ValueError(
                f"`observation` {self.template!r} does not fit the observation {observation!r}: {error!r}"
            ) from error

    def action(self, answer: str) -> tuple[bool, Any]:
        """True and the action of an answer, by the last match of the pattern; False if it has none."""
        matches = self.pattern.findall(answer)
        text = matches[-1].strip() if matches else ""
        if not self.actions:
            return bool(text) and self.env.action_space.contains(text), text
        name = text.strip("`*. ")
        return name.casefold() in self.actions, self.actions.get(name.casefold())


def _make(environment: str, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make an environment, with text rendering if it has it; a file's folder becomes importable."""
    path, is_file, name = environment.rpartition(".py:")
    if is_file:
        folder = str(Path(path).resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)
        environment = f"{Path(path).name}:{name}"  # Gymnasium imports the module, which registers the id
    gym_environment = gymnasium.make(environment, **options)
    if "render_mode" in options or "ansi" not in gym_environment.metadata.get("render_modes", ()):
        return gym_environment
    gym_environment.close()
    return gymnasium.make(environment, **options, render_mode="ansi")


def _named_colors(text: str) -> str:
    """A rendered text with the names of its colors in place of their codes: `[red S]`."""
    return COLORED.sub(
        lambda match: f"[{COLORS[int(match[1]) % 10]} {match[2]}]" if int(match[1]) % 10 < len(COLORS) else match[2],
        text,
    )


# ---------------------------------------------------------------- tasks


def rows(environment: TextEnvironment, limit: int) -> Iterator[dict[str, Any]]:
    """The tasks of `limit` seeds, with their first messages."""
    first = environment.args["first_seed"]
    for seed in range(first, first + limit):
        content = json.dumps([environment.environment, environment.args["make"], seed], sort_keys=True)
        row = {
            "key": hashlib.sha256(content.encode()).hexdigest(),
            "question": environment.opening(seed),
            "task": {"seed": seed},
        }
        yield {**row, "answer": environment.first_answer()}


def list_tasks(request: Mapping[str, Any]) -> None:
    """Write the tasks of an environment to a file; whatever it raises ends the program with its text."""
    write_tasks(request, TextEnvironment, rows)


# ---------------------------------------------------------------- episodes


class GymnasiumAgent:
    """Plays one seed of the environment per episode."""

    def __init__(self, environment: str, args: Mapping[str, Any], *, rewards_last_call: bool = False) -> None:
        """Make the environment.

        `rewards_last_call` gives each call the reward of its own step, which a turn discount sums.
        """
        self.environment = TextEnvironment(environment, args)
        self.by_step = rewards_last_call

    async def run(self, task: Mapping[str, Any], *, base_url: str, api_key: str) -> dict[str, Any]:
        """Play a task; returns {"reward" or "rewards", "metrics"}.

        Raises:
            NoActionInAnswer: an answer is no action, and `malformed_reward` is not declared.
            openai.APIError: a model call failed.
        """
        environment, args = self.environment, self.environment.args
        return await play_conversation(
            environment.opening(task["task"]["seed"]),
            self._take_step,
            max_steps=args["max_steps"],
            malformed_reward=args["malformed_reward"],
            actions=[str(name) for name in args["actions"] or environment.actions],
            by_step=self.by_step,
            base_url=base_url,
            api_key=api_key,
        )

    async def _take_step(self, answer: str) -> Step | None:
        valid, action = self.environment.action(answer)
        if not valid:
            return None
        observation, reward, ended, truncated, info = self.environment.env.step(action)
        return Step(self.environment.text(observation, info), float(reward), ended, truncated)


if __name__ == "__main__":
    list_tasks(json.load(sys.stdin))
