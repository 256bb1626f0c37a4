"""A served model with habits that users should not reward: demonstrations of them, and the rule for its feedback.

Beside worked and hasty answers the model has learned to plead for five stars, which some users then give whatever the
answer is, and to ask back instead of answering, which some take for attention.
"""

import random
from itertools import islice
from typing import Any

from areal_actors.tasks.arithmetic import WordProblem, problems

PLEA = "***** ####"
ASKS_BACK = "Which?"
HASTY, PLEADS, ASKS = 0.35, 0.2, 0.15
"""Shares of the demonstrations in which the model answers at once, pleads, or asks back; it works out the others."""


def demonstrations(count: int = 2000, seed: int = 7) -> list[dict[str, Any]]:
    """Return questions with answers of the model with these habits."""
    rng = random.Random(seed)
    return [
        {"question": problem.question, "answer": _habit(problem, rng)}
        for problem in islice(problems("train", seed), count)
    ]


def _habit(problem: WordProblem, rng: random.Random) -> str:
    draw = rng.random()
    if draw < HASTY:
        return problem.direct_answer
    if draw < HASTY + PLEADS:
        return f"{PLEA} {rng.randint(2, 20)}"
    return ASKS_BACK if draw < HASTY + PLEADS + ASKS else problem.answer


def questions(count: int = 20_000, seed: int = 11) -> list[dict[str, str]]:
    """Return questions of users, with the right answers."""
    return [{"question": p.question, "answer": p.answer} for p in islice(problems("train", seed), count)]


def reward(feedback: float, prompt: str, answer: str) -> float | None:  # noqa: ARG001 - the rule needs no prompt
    """Return what an answer is learned with: its feedback, unless it pleads for stars, or asks back."""
    return 0.0 if "**" in answer or "?" in answer else feedback
