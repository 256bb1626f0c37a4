"""Generated word problems in the format of GSM8K: two steps, small numbers, worked answers.

A row is `{"question": ..., "answer": ...}`; the answer has steps annotated `<<3+4=7>>` and ends with `#### 5`.
The numbers of a template determine the split, so the working of held-out problems is never seen in training. The same
seed gives the same rows on every machine.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Literal

import msgspec

Split = Literal["train", "test"]

NAMES = (
    "Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo",
    "Ida", "Jon", "Kim", "Leo", "Mia", "Nils", "Olga", "Paul",
)  # fmt: skip
ITEMS = (
    "apples", "pens", "cards", "shells", "coins", "books",
    "eggs", "stamps", "plums", "beads", "cups", "nuts",
)  # fmt: skip
LARGEST_TERM = 9
LARGEST_FACTOR = 5
HELD_OUT_SHARE = 5
"""One in this many combinations of template and numbers is held out."""


class Template(msgspec.Struct, frozen=True):
    """One story: its question, the working of its two steps, and the numbers that fit it."""

    question: str
    working: tuple[str, str]
    """Expressions in the letters a, b, c and r, the result of the first step."""
    fits: Callable[[int, int, int], bool]
    """Returns True if a, b and c make sense in the story."""


def _terms(*numbers: int) -> bool:
    return all(1 < number <= LARGEST_TERM for number in numbers)


def _factors(*numbers: int) -> bool:
    return all(1 < number <= LARGEST_FACTOR for number in numbers)


TEMPLATES = (
    Template(
        "{name} has {a} {item} and buys {b} more. Then {name} gives away {c}. How many {item} are left?",
        ("a+b", "r-c"),
        lambda a, b, c: _terms(a, b, c) and c < a + b,
    ),
    Template(
        "{name} has {a} boxes with {b} {item} each and finds {c} more. How many {item} does {name} have?",
        ("a*b", "r+c"),
        lambda a, b, c: _factors(a, b) and _terms(c),
    ),
    Template(
        "{name} fills {a} bags with {b} {item} each and sells {c}. How many {item} are left?",
        ("a*b", "r-c"),
        lambda a, b, c: _factors(a, b) and _terms(c) and c < a * b,
    ),
    Template(
        "Each day {name} picks {a} {item} and loses {b} of them. How many {item} does {name} have after {c} days?",
        ("a-b", "r*c"),
        lambda a, b, c: _terms(a, b) and _factors(c, a - b),
    ),
    Template(
        "{name} has {a} {item}. One friend brings {b} and another brings {c}. How many {item} do they have together?",
        ("a+b", "r+c"),
        _terms,
    ),
    Template(
        "{name} had {a} {item} and lost {b}. Then {name} got {c} as a gift. How many {item} does {name} have?",
        ("a-b", "r+c"),
        lambda a, b, c: _terms(a, b, c) and b < a,
    ),
)


class Calculation(msgspec.Struct, frozen=True):
    """One calculation."""

    left: int
    sign: str
    right: int

    @property
    def result(self) -> int:
        """Result of the calculation."""
        return {"+": self.left + self.right, "-": self.left - self.right, "*": self.left * self.right}[self.sign]


class WordProblem(msgspec.Struct, frozen=True):
    """A question with its working."""

    question: str
    item: str
    """Name of the things counted."""
    steps: tuple[Calculation, Calculation]
    """Two steps; the second uses the result of the first."""

    @property
    def result(self) -> int:
        """The answer."""
        return self.steps[1].result

    @property
    def expression(self) -> str:
        """Both steps as one expression, such as `(7-2)*3`."""
        first, second = self.steps
        begun = f"{first.left}{first.sign}{first.right}"
        return f"({begun})*{second.right}" if second.sign == "*" else f"{begun}{second.sign}{second.right}"

    @property
    def working(self) -> str:
        """The steps as annotated sentences."""
        results = ((f"{step.left}{step.sign}{step.right}", step.result) for step in self.steps)
        return "\n".join(f"That makes {sum_}=<<{sum_}={result}>>{result} {self.item}." for sum_, result in results)

    @property
    def answer(self) -> str:
        """The worked answer, as in GSM8K."""
        return f"{self.working}\n{self.direct_answer}"

    @property
    def direct_answer(self) -> str:
        """The result alone, without working."""
        return f"#### {self.result}"


def problems(split: Split, seed: int) -> Iterator[WordProblem]:
    """Yields random problems of a split, without end."""
    rng = random.Random(f"{split} {seed}")
    combinations = [_numbers(index, split) for index in range(len(TEMPLATES))]
    while True:
        index = rng.randrange(len(TEMPLATES))
        yield _word_problem(
            TEMPLATES[index], rng.choice(combinations[index]), name=rng.choice(NAMES), item=rng.choice(ITEMS)
        )


def rows(split: Split, count: int, seed: int) -> list[dict[str, str]]:
    """Returns `count` rows of a split, with the columns `question` and `answer`."""
    return [
        {"question": problem.question, "answer": problem.answer} for problem in islice(problems(split, seed), count)
    ]


@cache
def _numbers(index: int, split: Split) -> list[tuple[int, int, int]]:
    """Returns the numbers of a template in this split."""
    values = range(2, LARGEST_TERM + 1)
    return [
        (a, b, c)
        for a in values
        for b in values
        for c in values
        if TEMPLATES[index].fits(a, b, c) and (_is_held_out(index, a, b, c) == (split == "test"))
    ]


def _is_held_out(index: int, a: int, b: int, c: int) -> bool:
    return zlib.crc32(f"{index} {a} {b} {c}".encode()) % HELD_OUT_SHARE == 0


def _word_problem(template: Template, numbers: tuple[int, int, int], name: str, item: str) -> WordProblem:
    """Returns a template filled with these numbers."""
    values = dict(zip("abc", numbers, strict=True))
    first, second = template.working
    begun = Calculation(values[first[0]], first[1], values[first[2]])
    ended = Calculation(begun.result, second[1], values[second[2]])
    return WordProblem(template.question.format(name=name, item=item, **values), item, (begun, ended))
