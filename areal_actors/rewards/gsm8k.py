r"""GSM8K reward: compares the final number of an answer with that of the task's solution.

If an answer states its result in several ways, the most explicit counts, and of equally explicit ones the last:

    #### 18                  after four hashes, directly followed by a number (`#### Step 1` is a heading)
    \boxed{18}               closed braces; may contain `\text{}`
    the answer is 18         also `Answer: 18` and `answer = 18`, up to the end of the sentence
    … 18 …                   else the last number of the text

A statement must name one number: in a chain of equations (`9 * 2 = 18`) the right side counts, an aside in brackets is
ignored, and `5 or 6` is no answer. An answer without a number is wrong, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from areal_actors.core.config import Config
from areal_actors.core.errors import RewardError
from areal_actors.rewards.checks import task_name
from areal_actors.rewards.numbers import all_same, leading_number, numbers, plain, same_number

_HASHES = re.compile(r"#{4,}\s*([^\n]*)")
_DECORATION = re.compile(r"^(?:[\s*_`(\[]|\\[(\[]|\$(?=\s?[$\\]))+")
_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)\s?\{|[{}]")
_ANSWER = re.compile(
    r"\banswer\b[^.:=\n#]{0,80}?(?:\b(?:is|was|would be|equals)\b\s?:?|[:=])(?!\s?(?:not\b|n't))\s*([^\n]*)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?!\d)|;|\((?!\s?or\b)|\b(?:because|since|as)\b|,(?=\s+(?!or\b|and\b)[^\W\d])")
_CALCULATION = re.compile(r"<<[^<>=]{1,60}[-+*/][^<>=]{1,60}=[^<>=]{1,40}>>")
_NUMBER = re.compile(r"\s*[-+]?[$€£]?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)\s?%?\s*")
_OPERAND = r"[$€£]?(?:\d[\d.,]{0,20}|\.\d{1,20})\s?%?(?:\s?[A-Za-z]{1,20}){0,2}\)?"
_EQUATION = re.compile(rf"(?<![\w.,]){_OPERAND}\s?[-+*/×÷x]\s?\(?{_OPERAND}\s?=\s?-?[$€£]?\.?\d")

SOLUTIONS_KEPT = 1024
"""Solutions whose number is kept: more than tasks that are answered at once."""


def gsm8k(task: Mapping[str, Any], output: str) -> float:
    """Returns 1.0 if the output's final number equals the one after `####` in `task["answer"]`, else 0.0.

    Raises:
        RewardError: the task has no such number, an error in the data; the message names the task.
    """
    truth = _truth(task)
    answer = final_number(output)
    return 1.0 if answer is not None and same_number(answer, truth) else 0.0


class Gsm8k(Config):
    """`task.reward = "gsm8k"`; it has no options."""

    def prepare(self) -> None:
        """Nothing to load."""

    def read_reference(self, task: Mapping[str, Any]) -> Fraction:
        """Returns the number of a task; raises RewardError if there is none."""
        return _truth(task)

    def __call__(self, task: Mapping[str, Any], output: str) -> Mapping[str, float]:
        """Returns the reward of `gsm8k`, and whether the answer `shows_work`."""
        return {"reward": gsm8k(task, output), "shows_work": float(shows_work(output))}


def final_number(output: str) -> Fraction | None:
    """Returns the final number of an answer, or None if it has none or several; see the table above."""
    for statement in (_after_hashes(output), _last_box(output), _after_answer(output)):
        if statement is not None:
            return _one_number(statement)
    candidates = numbers(plain(output))
    return candidates[-1] if candidates else None


def shows_work(output: str) -> bool:
    """True if an answer contains at least one worked step: `<<9*2=18>>`, or an equation such as `9 * 2 = 18`."""
    return bool(_CALCULATION.search(output) or _EQUATION.search(plain(output)))


def _truth(task: Mapping[str, Any]) -> Fraction:
    solution = task.get("answer")
    truth = _number_of_solution(solution) if isinstance(solution, str) else None
    if truth is None:
        shown = repr(solution[-60:]) if isinstance(solution, str) else type(solution).__name__
        raise RewardError(
            f"task {task_name(task)}: `answer` must be a text that ends with `#### NUMBER`, or a number, got {shown}"
        )
    return truth


@lru_cache(SOLUTIONS_KEPT)
def _number_of_solution(solution: str) -> Fraction | None:
    """Returns the number that a solution states; read once for the answers of a group."""
    statement = solution if _NUMBER.fullmatch(solution) else _after_hashes(solution)
    return _one_number(statement) if statement is not None else None


def _after_hashes(text: str) -> str | None:
    lines = [plain(_DECORATION.sub("", line)) for line in _HASHES.findall(text)]
    stated = [line for line in lines if leading_number(line) is not None]
    return stated[-1] if stated else None


def _last_box(text: str) -> str | None:
    """Returns the content of the box that closes last."""
    stated: str | None = None
    openings: list[re.Match[str]] = []
    for match in _BOX_OR_BRACE.finditer(text):
        if match[0] != "}":
            openings.append(match)
        elif openings and (opening := openings.pop())[0] != "{":
            stated = text[opening.end() : match.start()]
    return None if stated is None else plain(stated)


def _after_answer(text: str) -> str | None:
    """Returns the rest of the sentence after the last `answer is` that contains a number."""
    sentences = [_SENTENCE_END.split(plain(rest), maxsplit=1)[0] for rest in _ANSWER.findall(text)]
    stated = [sentence for sentence in sentences if numbers(sentence)]
    return stated[-1] if stated else None


def _one_number(statement: str) -> Fraction | None:
    candidates = numbers(_SENTENCE_END.split(statement, maxsplit=1)[0].rpartition("=")[2])
    return candidates[0] if candidates and all_same(candidates) else None
