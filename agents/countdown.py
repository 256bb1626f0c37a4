"""The numbers game: reach a target from given numbers with + - * /, each number used exactly once."""

import ast
import operator
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from areal_actors.client import LightClient

INSTRUCTIONS = (
    "Think it through, then write the expression alone between <answer> and </answer>, such as <answer>(3 + 5) *"
    " 7</answer>."
)
OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LONGEST_EXPRESSION = 200
FOLLOWED_THE_RULES = 0.1
"""Reward of an expression that uses the numbers as asked and misses the target: the first thing to learn."""


class CountdownAgent:
    """One question, one answer."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Ask, and return the answer's text."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        messages: list[Any] = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": task["question"]},
        ]
        completion = await client.chat.completions.create(model="default", messages=messages)
        return completion.choices[0].message.content or ""


def reward(task: Mapping[str, Any], output: str) -> float:
    """1 for an expression of exactly the task's `numbers` that reaches its `target`, a little for any other, else 0."""
    written = re.findall(r"<answer>(.*?)</answer>", output, re.DOTALL)
    if not written or len(written[-1]) > LONGEST_EXPRESSION:
        return 0.0
    used: list[int] = []
    try:
        reached = value(ast.parse(written[-1].strip(), mode="eval").body, used)
    except (ValueError, SyntaxError, ZeroDivisionError):
        return 0.0
    if Counter(used) != Counter(task["numbers"]):
        return 0.0
    return 1.0 if reached == task["target"] else FOLLOWED_THE_RULES


def value(node: ast.AST, used: list[int]) -> Fraction:
    """The exact value of an expression; the numbers in it are added to `used`."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            used.append(number)
            return Fraction(number)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            first, second = value(left, used), value(right, used)
            return Fraction(OPERATORS[type(sign)](first, second))
    raise ValueError("only whole numbers, + - * / and brackets")
