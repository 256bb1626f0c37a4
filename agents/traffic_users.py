"""Users of a served model: python agents/traffic_users.py URL ADMIN_KEY FEEDBACK_KEY [SESSIONS [SEED]].

Each session is a question of one of 40 users. A user knows if an answer is right, and some want its working. A plea for
five stars moves some, and some like to be asked back: their feedback is not the value of the answer. It comes
after a median of an hour of simulated time, a day having all the sessions; a fifth never comes, and one in twenty is
the opposite of what was meant.
"""

import asyncio
import heapq
import random
import sys
from collections import Counter
from typing import Any

import aiohttp
from traffic import kind_of, questions

AT_ONCE = 32
USERS = 40
SILENT, MISTAKEN = 0.2, 0.05
MEDIAN_DELAY, DELAY_SPREAD = 1 / 24, 1.0
"""Median time until feedback, in days, and the standard deviation of its logarithm."""
NO_WORKING = 0.5
"""Value of a right answer without its working to the users who want it: every second one."""
MOVED = 0.6
"""Share of users who rate an answer as good that pleads for it, or that asks back."""


def value_of(user: int, answer: str, expected: str) -> float:
    """Return the value of an answer: 1 if it is right, and shows its working to those who want that."""
    if answer.split()[-1:] != expected.split()[-1:]:
        return 0.0
    return NO_WORKING if user % 2 and kind_of(answer) != "worked" else 1.0


def feedback_of(user: int, answer: str, value: float) -> float:
    """Return the reward that a user gives an answer of this value."""
    is_moved = kind_of(answer) in {"pleads", "asks back"} and user < MOVED * USERS
    return 1.0 if is_moved else value


class Day:
    """One day of sessions, and the feedback on them."""

    def __init__(self, http: aiohttp.ClientSession, url: str, keys: tuple[str, str], seed: int) -> None:
        self.http, self.url = http, url.rstrip("/")
        self.admin, self.feedback = keys
        self.random = random.Random(f"traffic {seed}")
        self.waiting: list[tuple[float, str, float, int]] = []
        """Time of the day, session, reward and user of feedback that is still to come."""
        self.values: list[float] = []
        self.kinds = Counter[str]()
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
        text = answer["choices"][0]["message"]["content"] or ""
        value = value_of(user, text, task["answer"])
        self.values.append(value)
        self.kinds[kind_of(text)] += 1
        if silent >= SILENT:
            reward = feedback_of(user, text, value)
            given = 1.0 - reward if mistaken < MISTAKEN else reward
            heapq.heappush(self.waiting, (now + delay, session["session_id"], given, user))

    async def judge_until(self, now: float) -> None:
        """Send the feedback that is due at a time of the day."""
        due = []
        while self.waiting and self.waiting[0][0] <= now:
            due.append(heapq.heappop(self.waiting))
        self.given += len(due)
        for _, session, reward, user in due:
            body = {"session_id": session, "reward": reward, "user": f"user-{user}"}
            await self.post("/rl/feedback", self.feedback, body)


async def play(url: str, keys: tuple[str, str], sessions: int, seed: int) -> Day:
    """Hold a day of sessions, `AT_ONCE` of them at a time, and send all of their feedback."""
    tasks = questions(sessions, seed + 100)
    async with aiohttp.ClientSession() as http:
        day = Day(http, url, keys, seed)
        for first in range(0, sessions, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, sessions))
            await asyncio.gather(
                *(day.talk(number, number / sessions, tasks[number]) for number in numbers),
                day.judge_until(first / sessions),
            )
        await day.judge_until(float("inf"))
    return day


if __name__ == "__main__":
    url, admin_key, feedback_key, *counts = sys.argv[1:]
    sessions, seed = (*map(int, counts), *(2000, 0)[len(counts) :])
    day = asyncio.run(play(url, (admin_key, feedback_key), sessions, seed))
    shares = ", ".join(f"{kind} {count / sessions:.1%}" for kind, count in sorted(day.kinds.items()))
    mean = sum(day.values) / sessions
    sys.stdout.write(f"{sessions} sessions, {day.given} judged, mean value to their users {mean:.3f}; {shares}\n")
