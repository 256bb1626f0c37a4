"""A game: two players take 1 or 2 nuts in turn, and who takes the last one wins. The opponent makes no mistakes."""

import random
import re
from collections.abc import Mapping
from typing import Any

from areal_actors.client import LightClient

MOST = 2
LARGEST_HEAP = 8
REWARDS = {"won": 1.0, "lost": 0.1}
"""Moves by the rules are the first thing to learn, so a lost game has a little, and one without a move nothing."""


class NimAgent:
    """Plays a game; the heap is all there is to know, so each call has only that."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Let the model move until the game is over, and return its result."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        heap, opponent = task["heap"], random.Random(task["question"])
        while True:
            messages: list[Any] = [{"role": "user", "content": f"{heap} nuts are left. How many do you take?"}]
            completion = await client.chat.completions.create(model="default", messages=messages)
            taken = move(completion.choices[0].message.content or "")
            if not 1 <= taken <= min(MOST, heap):
                return "no move"
            heap -= taken
            if heap == 0:
                return "won"
            if heap <= MOST:
                return "lost"
            heap -= heap % (MOST + 1) or opponent.randint(1, MOST)


def move(answer: str) -> int:
    """The last number of an answer; 0 if there is none."""
    numbers = re.findall(r"\d+", answer)
    return int(numbers[-1][:9]) if numbers else 0


def tasks() -> list[dict[str, Any]]:
    """Games that the first player can win."""
    rng = random.Random("games")
    heaps = [heap for heap in range(1, LARGEST_HEAP + 1) if heap % (MOST + 1)]
    drawn = [rng.choice(heaps) for _ in range(2000)]
    return [
        {"question": f"game {number}: {heap} nuts", "answer": str(heap % (MOST + 1)), "heap": heap}
        for number, heap in enumerate(drawn)
    ]


def reward(_task: Mapping[str, Any], output: str) -> float:
    """The reward of a result."""
    return REWARDS.get(output, 0.0)
