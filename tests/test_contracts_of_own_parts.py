"""Rewards, readers and algorithms of this package keep the contracts that it ships for those of others."""

from __future__ import annotations

import csv
import io
import json
from random import Random

import msgspec
import pytest

from areal_actors.contracts import algorithm, reader, reward
from areal_actors.rewards import resolve_reward
from areal_actors.tasks.sources import READERS
from areal_actors.training import algorithms
from areal_actors.training.algorithms.base import Algorithm

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TESTS = "assert double(2) == 4"
REWARDS = {
    "gsm8k": [({"answer": "#### 12"}, "so it is 12\n#### 12", 1.0), ({"answer": "#### 12"}, "#### 13", 0.0)],
    "math": [({"answer": "\\frac{1}{2}"}, "\\boxed{0.5}", 1.0), ({"answer": "2"}, "\\boxed{3}", 0.0)],
    "json_schema": [({"schema": SCHEMA}, '{"city": "Ulm"}', 1.0), ({"schema": SCHEMA}, '{"town": "Ulm"}', 0.0)],
}
ROWS = [{"question": "one", "answer": "1"}, {"question": "two, or more", "answer": "2"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def as_csv(delimiter):
    text = io.StringIO()
    writer = csv.DictWriter(text, ["question", "answer"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue()


FILES = {".jsonl": LINES, ".json": json.dumps(ROWS), ".csv": as_csv(","), ".tsv": as_csv("\t")}
ALGORITHMS = {
    kind.__struct_config__.tag: kind
    for kind in vars(algorithms).values()
    if isinstance(kind, type)
    and issubclass(kind, Algorithm)
    and kind is not Algorithm
    and kind.learns_from == "episodes"
}
OPTIONS = {"distillation": {"teacher": "initial"}}
OTHERS = {"custom"}
"""Algorithms that are no algorithm by themselves."""


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("case", reward.CASES, ids=lambda case: case.__name__)
def test_a_reward_keeps_its_contract(name, case):
    case(reward.RewardHarness(resolve_reward(name), REWARDS[name], Random(0)))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("case", reader.CASES, ids=lambda case: case.__name__)
def test_a_reader_keeps_its_contract(name, case, tmp_path):
    file = tmp_path / f"rows{name}"
    file.write_text(FILES[name])

    def read(path):
        rows = READERS[name](path)
        return [rows.row(number) for number in range(len(rows))]

    case(reader.ReaderHarness(read, file, ROWS))


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - OTHERS))
@pytest.mark.parametrize("case", algorithm.CASES, ids=lambda case: case.__name__)
def test_an_algorithm_keeps_its_contract(name, case):
    case(algorithm.harness_of(msgspec.convert({"name": name, **OPTIONS.get(name, {})}, ALGORITHMS[name])))


def test_all_algorithms_are_among_them():
    assert {"grpo", "ppo", "rloo", "dapo", "gspo", "cispo"} <= ALGORITHMS.keys()
