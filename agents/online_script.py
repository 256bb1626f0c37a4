"""Plays episodes from outside a run: python agents/online_script.py http://127.0.0.1:8000 ADMIN_KEY tasks.jsonl.

Each line of the file is a task with `question` and `answer`. The run has a gateway in online mode; this script opens a
session for each task, talks to the model through it, sets the reward of the answer, and ends it. The tokens of the
session are then trained.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

AT_ONCE = 8
PATIENCE = 100
"""Number of retries for a session while the run has no capacity; the SDK waits for `Retry-After` between them."""
GROUP_SIZE = 4
"""Episodes per task, equal to the recipe's `algorithm.group_size`: their rewards are compared with each other."""


async def play(gateway: AsyncOpenAI, task_id: str, task: dict[str, str]) -> float:
    """Play one episode: session, conversation, reward, end.

    Returns:
        The reward.
    """
    session = await gateway.post(
        "/rl/start_session", body={"task_id": task_id, "group_size": GROUP_SIZE}, cast_to=dict[str, Any]
    )
    async with AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"]) as client:
        lifecycle = client.with_options(base_url=session["base_url"].removesuffix("/v1"))
        try:
            messages: list[Any] = [{"role": "user", "content": task["question"]}]
            completion = await client.chat.completions.create(model="default", messages=messages)
            answer = completion.choices[0].message.content or ""
            reward = float(answer.split()[-1:] == task["answer"].split()[-1:])
            await lifecycle.post("/rl/set_reward", body={"reward": reward}, cast_to=dict[str, Any])
        finally:
            await lifecycle.post("/rl/end_session", body={}, cast_to=dict[str, Any])
    return reward


async def play_all(url: str, admin_key: str, tasks: list[dict[str, str]]) -> list[float]:
    """Play all tasks, `AT_ONCE` of them concurrently."""
    free = asyncio.Semaphore(AT_ONCE)
    async with AsyncOpenAI(base_url=url, api_key=admin_key, max_retries=PATIENCE) as gateway:

        async def one(number: int, task: dict[str, str]) -> float:
            async with free:
                return await play(gateway, f"online-{number}", task)

        return await asyncio.gather(
            *(one(number, task) for number, task in enumerate(tasks) for _ in range(GROUP_SIZE))
        )


if __name__ == "__main__":
    url, admin_key, path = sys.argv[1:]
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    rewards = asyncio.run(play_all(url, admin_key, [json.loads(line) for line in lines]))
    sys.stdout.write(f"{len(rewards)} episodes, mean reward {sum(rewards) / len(rewards):.3f}\n")
