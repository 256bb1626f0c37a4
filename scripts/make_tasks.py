"""Writes the tasks that come with the agents: `python scripts/make_tasks.py agents/tasks`. The output is deterministic.

countdown.jsonl      numbers and a target, with one solution
encyclopedia.txt     invented articles, one per line
encyclopedia.jsonl   questions about the articles, answered by one or two of them
word_problems.jsonl  word problems of two steps, such as the embedded model knows
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from areal_actors.tasks import arithmetic

COUNTDOWN_TASKS = 500
WORD_PROBLEMS = 500
TOWNS = 100

BEGINNINGS = [
    "Al",
    "Bren",
    "Cor",
    "Dun",
    "Er",
    "Fal",
    "Gor",
    "Hel",
    "Is",
    "Jor",
    "Kal",
    "Lor",
    "Mar",
    "Nor",
    "Or",
    "Pel",
    "Quen",
    "Ros",
]
BEGINNINGS += ["Sel", "Tor", "Ul", "Var", "Wes", "Yar", "Zel"]
ENDINGS = [
    "ack",
    "by",
    "dale",
    "eth",
    "ford",
    "gate",
    "holm",
    "ing",
    "kirk",
    "low",
    "mere",
    "nor",
    "ock",
    "port",
    "rick",
    "stow",
    "thorpe",
]
GIVEN_NAMES = [
    "Ada",
    "Boris",
    "Clara",
    "Dmitri",
    "Elsa",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kira",
    "Leo",
    "Mina",
    "Nils",
    "Olga",
]
BUILDINGS = ["bridge", "clock tower", "library", "lighthouse", "observatory", "theatre", "town hall", "water mill"]
TRADES = ["amber", "barley", "cheese", "copper", "felt", "glass", "honey", "linen", "paper", "salt", "silk", "tin"]


def main(folder: Path) -> None:
    """Write all files."""
    towns = list(invented_towns(Random("encyclopedia")))
    write_rows(folder / "countdown.jsonl", countdown_tasks(Random("countdown")))
    (folder / "encyclopedia.txt").write_text(
        "".join(f"{line}\n" for town in towns for line in articles(town)), encoding="utf-8"
    )
    write_rows(folder / "encyclopedia.jsonl", questions(towns))
    write_rows(folder / "word_problems.jsonl", word_problems())


def write_rows(path: Path, rows: Sequence[dict[str, Any]] | Iterator[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def countdown_tasks(random: Random) -> Iterator[dict[str, Any]]:
    """Games of three or four numbers whose target is a whole number from 10 to 100."""
    seen: set[str] = set()
    while len(seen) < COUNTDOWN_TASKS:
        numbers = [random.randint(1, 50) for _ in range(random.choice([3, 4]))]
        text, target = str(numbers[0]), numbers[0]
        for number in numbers[1:]:
            sign = random.choice("+-*") if target % number else random.choice("+-*/")
            text = f"({text}) {sign} {number}" if " " in text else f"{text} {sign} {number}"
            target = {"+": target + number, "-": target - number, "*": target * number, "/": target // number}[sign]
        question = f"Use the numbers {', '.join(map(str, sorted(numbers)))}, each exactly once, to reach {target}."
        if 10 <= target <= 100 and question not in seen:
            seen.add(question)
            yield {"question": question, "answer": text, "numbers": sorted(numbers), "target": target}


def word_problems() -> Iterator[dict[str, str]]:
    """Word problems with their results."""
    for row in arithmetic.rows("train", WORD_PROBLEMS, seed=0):
        yield {"question": row["question"], "answer": row["answer"].rpartition("#### ")[2]}


def invented_towns(random: Random) -> Iterator[dict[str, str]]:
    """Towns with a building, its builder, and the builder's place of birth, trade and year."""
    names = [beginning + ending for beginning in BEGINNINGS for ending in ENDINGS]
    random.shuffle(names)
    people = [f"{given} {name}" for given, name in zip(GIVEN_NAMES * TOWNS, names[TOWNS:], strict=False)]
    for town, builder in zip(names[:TOWNS], people, strict=False):
        yield {
            "town": town,
            "building": random.choice(BUILDINGS),
            "builder": builder,
            "birthplace": random.choice(names[:TOWNS]),
            "trade": random.choice(TRADES),
            "year": str(random.randint(1601, 1899)),
        }


def articles(town: dict[str, str]) -> Iterator[str]:
    """Articles on a town and on its builder."""
    yield "{town}: a town that lives on {trade}. Its {building} was built by {builder}.".format(**town)
    yield "{builder}: a builder, born in {birthplace} in {year}.".format(**town)


def questions(towns: Sequence[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Three questions on each town, which need one, two, and two or three articles."""
    trades = {town["town"]: town["trade"] for town in towns}
    for town in towns:
        yield {"question": "Who built the {building} of {town}?".format(**town), "answer": town["builder"]}
        yield {
            "question": "In which year was the builder of the {building} of {town} born?".format(**town),
            "answer": town["year"],
        }
        birthplace = "What does the town live on in which the builder of the {building} of {town} was born?".format(
            **town
        )
        yield {"question": birthplace, "answer": trades[town["birthplace"]]}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
