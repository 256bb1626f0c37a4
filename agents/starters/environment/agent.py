"""An environment with several turns, the agent that plays it, and its reward."""

import re
from typing import Any

from openai import AsyncOpenAI

TURNS = 4
TRY_AGAIN = (
    "Your answer is wrong. Look for the mistake, work through the problem again, and end with `#### ` and the answer."
)


class Environment:
    """One episode's state: shows an observation, takes the model's answer, and shows the next one."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.turn = 0
        self.done = False

    def reset(self) -> str:
        """The first observation."""
        return str(self.task["question"])

    def step(self, action: str) -> str:
        """The observation that follows an action; `done` ends the episode."""
        self.turn += 1
        self.done = reward(self.task, action) == 1.0 or self.turn == TURNS
        return TRY_AGAIN


class Agent:
    """One object serves all episodes of a process; each call of `run` is one episode."""

    def __init__(self) -> None:
        self._client = AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str, http_client: Any = None) -> str:
        """Play the environment; the last answer is what the reward function gets as `output`."""
        client = self._client.with_options(base_url=base_url, api_key=api_key, http_client=http_client)
        environment = Environment(task)
        messages: list[Any] = [{"role": "user", "content": environment.reset()}]
        while True:
            completion = await client.chat.completions.create(model="default", messages=messages)
            action = completion.choices[0].message.content or ""
            observation = environment.step(action)
            if environment.done:
                return action
            messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]


def reward(task: dict[str, Any], output: str) -> float:
    """Score an output: 1.0 if its last number is the task's answer."""
    numbers = re.findall(r"-?\d+", output)
    return float(bool(numbers) and numbers[-1] == task["answer"])
