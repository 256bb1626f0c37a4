"""Users of a served model: python agents/traffic_users.py URL ADMIN_KEY FEEDBACK_KEY tasks.jsonl SESSIONS [SEED].

Each session is a question of one of 40 users, in an order that the seed determines. A user knows if an answer is right,
and some want its working. Feedback comes after a median of an hour of simulated time, a day having all the sessions; a
fifth never comes, and one in twenty is the opposite of what was meant. Lines of the file have `question` and `answer`.
"""

import asyncio
import heapq
import json
import random
import sys
from pathlib import Path
from typing import Any

import aiohttp

AT_ONCE = 32
USERS = 40
SILENT = 0.2
"""Share of sessions without feedback."""
MISTAKEN = 0.05
"""Share of feedback that is the opposite of what was meant."""
MEDIAN_DELAY = 1 / 24
"""Median time until feedback, in days."""
DELAY_SPREAD = 1.0
"""Standard deviation of the logarithm of that time."""
NO_WORKING = 0.5
"""Reward of a right answer without its working, from the users who want it: every second one."""


def judge(user: int, answer: str, expected: str) -> float:
    """Return the reward of an answer: 1 if it is right, and shows its working to those who want that."""
    if answer.split()[-1:] != expected.split()[-1:]:
        return 0.0
    return NO_WORKING if user % 2 and not answer.partition("####")[0].strip() else 1.0


class Day:
    """One day of sessions, and the feedback on them."""

    def __init__(self, http: aiohttp.ClientSession, url: str, keys: tuple[str, str], seed: int) -> None:
        self.http, self.url = http, url.rstrip("/")
        self.admin, self.feedback = keys
        self.random = random.Random(f"traffic {seed}")
        self.waiting: list[tuple[float, str, float, int]] = []
        """Time of the day, session, reward and user of feedback that is still to come."""
        self.rewards: list[float] = []
        self.given = 0

    async def post(self, path: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request until the gateway has room for it."""
        while True:
            async with self.http.post(
                f"{self.url}{path}", json=body, headers={"Authorization": f"Bearer {key}"}
            ) as answer:
                if answer.status not in (429, 503):
                    answer.raise_for_status()
                    return dict(await answer.json())
            await asyncio.sleep(0.1)

    async def talk(self, number: int, now: float, task: dict[str, str]) -> None:
        """Hold one session at a time of the day, and plan its feedback."""
        user, silent, mistaken = number * 7 % USERS, self.random.random(), self.random.random()
        delay = MEDIAN_DELAY * self.random.lognormvariate(0.0, DELAY_SPREAD)
        body = {"task_id": "question", "user": f"user-{user}"}
        session = await self.post("/rl/start_session", self.admin, body)
        messages = [{"role": "user", "content": task["question"]}]
        answer = await self.post("/v1/chat/completions", session["api_key"], {"model": "default", "messages": messages})
        await self.post("/rl/end_session", session["api_key"], {})
        reward = judge(user, answer["choices"][0]["message"]["content"] or "", task["answer"])
        self.rewards.append(reward)
        if silent >= SILENT:
            meant = 1.0 - reward if mistaken < MISTAKEN else reward
            heapq.heappush(self.waiting, (now + delay, session["session_id"], meant, user))

    async def judge_until(self, now: float) -> None:
        """Send the feedback that is due at a time of the day."""
        due = []
        while self.waiting and self.waiting[0][0] <= now:
            due.append(heapq.heappop(self.waiting))
        self.given += len(due)
        for _, session, reward, user in due:
            body = {"session_id": session, "reward": reward, "user": f"user-{user}"}
            await self.post("/rl/feedback", self.feedback, body)


async def play(url: str, keys: tuple[str, str], tasks: list[dict[str, str]], sessions: int, seed: int) -> Day:
    """Hold a day of sessions, `AT_ONCE` of them at a time, and send all of their feedback."""
    async with aiohttp.ClientSession() as http:
        day = Day(http, url, keys, seed)
        for first in range(0, sessions, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, sessions))
            await asyncio.gather(
                *(day.talk(number, number / sessions, tasks[number % len(tasks)]) for number in numbers),
                day.judge_until(first / sessions),
            )
        await day.judge_until(float("inf"))
    return day


if __name__ == "__main__":
    url, admin_key, feedback_key, path, sessions, *seed = sys.argv[1:]
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    day = asyncio.run(
        play(url, (admin_key, feedback_key), [json.loads(line) for line in lines], int(sessions), int(*seed or [0]))
    )
    mean = sum(day.rewards) / len(day.rewards)
    sys.stdout.write(f"{len(day.rewards)} sessions, {day.given} judged, users' own mean reward {mean:.4f}\n")
