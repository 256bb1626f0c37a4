"""Compares a judge with labelled examples, before a run trusts it.

A row of the file has the fields of a task, the `output` to judge and its `label`, a number; for comparisons also the
`group` in which it is compared. The agreement is the accuracy if all labels are 0 or 1 (a reward of at least ½ counts
as 1), else the rank correlation (Spearman's); of a comparison it is the share of pairs of a group, with different
labels, that the judge puts in the same order, where a tie counts ½. Intervals are of 95 %: Wilson's for shares,
Fisher's for correlations.
"""

from __future__ import annotations

import asyncio
import csv
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from areal_actors.core.errors import RecipeError
from areal_actors.messages import JudgeCalibrated
from areal_actors.rewards.judge.comparisons import Candidate, compare
from areal_actors.rewards.judge.inquiry import Inquiry
from areal_actors.rewards.judge.panel import score_by_rubric

Z = 1.96
"""Standard deviations of a 95 % interval."""
FEWEST = 4
"""Examples from which a correlation has an interval."""


class LabelledExample(NamedTuple):
    """An output with the label that the judge should agree with."""

    task: Mapping[str, Any]
    output: str
    label: float
    group: str


class Agreement(NamedTuple):
    """Agreement of rewards with labels, with its 95 % interval, over `n` examples or pairs."""

    measure: str
    value: float
    low: float
    high: float
    n: int


async def calibrate(inquiry: Inquiry) -> JudgeCalibrated:
    """Returns the agreement of a judge with the examples of its `calibration`.

    Raises:
        RecipeError: an example is wrong; names its row.
        RewardError: the judge gives no verdict about an example.
    """
    judge = inquiry.judge
    examples = read_examples(judge.calibration, with_groups=judge.compares())
    if judge.compares():
        agreement = agreement_in_order(await _compare_examples(inquiry, examples))
    else:
        findings = await asyncio.gather(
            *(score_by_rubric(inquiry, example.task, example.output) for example in examples)
        )
        agreement = agreement_of([finding.reward for finding in findings], [example.label for example in examples])
    return JudgeCalibrated(
        judge=judge.name,
        model=judge.model or judge.place(),
        file=judge.calibration,
        measure=agreement.measure,
        agreement=agreement.value,
        low=agreement.low,
        high=agreement.high,
        n=agreement.n,
        min_agreement=judge.min_agreement,
    )


def read_examples(path: str, *, with_groups: bool) -> list[LabelledExample]:
    """Returns the examples of a `.jsonl` or `.csv` file.

    Raises:
        RecipeError: it cannot be read, or a row lacks `output`, `label` or, `with_groups`, `group`.
    """
    examples = []
    for number, row in enumerate(_rows(Path(path).expanduser()), start=1):
        needed = ("output", "label", "group") if with_groups else ("output", "label")
        if missing := [name for name in needed if row.get(name) in (None, "")]:
            raise RecipeError(f"`calibration`: row {number} of {path} has no {' and no '.join(missing)}")
        try:
            label = float(row["label"])
        except (TypeError, ValueError):
            label = math.nan
        if not math.isfinite(label):
            raise RecipeError(f"`calibration`: row {number} of {path} has the label {row['label']!r}; write a number")
        task = {name: value for name, value in row.items() if name not in ("output", "label", "group")}
        task.setdefault("id", f"row {number}")
        examples.append(LabelledExample(task, str(row["output"]), label, str(row.get("group", ""))))
    if not examples:
        raise RecipeError(f"`calibration`: {path} has no rows; write some, with `output` and `label`")
    return examples


def agreement_of(rewards: Sequence[float], labels: Sequence[float]) -> Agreement:
    """Returns the accuracy for labels 0 and 1, else the rank correlation."""
    if set(labels) <= {0.0, 1.0}:
        right = sum((reward >= 0.5) == bool(label) for reward, label in zip(rewards, labels, strict=True))
        return Agreement("accuracy", right / len(labels), *wilson_interval(right, len(labels)), len(labels))
    correlation, n = rank_correlation(rewards, labels), len(labels)
    low, high = -1.0, 1.0
    if n >= FEWEST and abs(correlation) < 1.0:
        center, width = math.atanh(correlation), Z / math.sqrt(n - 3)
        low, high = math.tanh(center - width), math.tanh(center + width)
    return Agreement("rank correlation", correlation, low, high, n)


def agreement_in_order(groups: Sequence[Sequence[tuple[float, float]]]) -> Agreement:
    """Returns the share of pairs in order; `groups` have pairs of reward and label.

    Raises:
        RecipeError: no group has answers with different labels.
    """
    pairs = [pair for group in groups for pair in combinations(group, 2) if pair[0][1] != pair[1][1]]
    if not pairs:
        raise RecipeError("`calibration`: no group has outputs with different labels, which could be put in order")
    in_order = sum(_order(first, second) for first, second in pairs)
    return Agreement("order of pairs", in_order / len(pairs), *wilson_interval(in_order, len(pairs)), len(pairs))


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson's score interval)."""
    share = successes / n
    center = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    width = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(center - width, 0.0), min(center + width, 1.0)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns Spearman's correlation, 0 if either has one value only; equal values share their mean rank."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return 0.0
    return statistics.correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [statistics.fmean(places[value]) for value in values]


def _order(first: tuple[float, float], second: tuple[float, float]) -> float:
    (reward, label), (other_reward, other_label) = first, second
    if reward == other_reward:
        return 0.5
    return float((reward > other_reward) == (label > other_label))


async def _compare_examples(inquiry: Inquiry, examples: Sequence[LabelledExample]) -> list[list[tuple[float, float]]]:
    """Returns reward and label of all examples, by group."""
    groups: dict[str, dict[str, LabelledExample]] = defaultdict(dict)
    for number, example in enumerate(examples):
        groups[example.group][f"{example.group}.{number}"] = example
    findings = await asyncio.gather(
        *(
            compare(
                inquiry,
                name,
                {episode: Candidate(example.task, example.output) for episode, example in members.items()},
                len(members),
            )
            for name, members in groups.items()
        )
    )
    return [
        [(found[episode].reward, example.label) for episode, example in members.items()]
        for found, members in zip(findings, groups.values(), strict=True)
    ]


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise RecipeError(f"`calibration`: {file} cannot be read ({error}); name a .jsonl or .csv file") from error
    if file.suffix == ".csv":
        yield from csv.DictReader(text.splitlines(keepends=True))
        return
    for number, line in enumerate(filter(str.strip, text.splitlines()), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RecipeError(f"`calibration`: row {number} of {file} is no JSON ({error})") from error
        if not isinstance(row, dict):
            raise RecipeError(f"`calibration`: row {number} of {file} is no object; write one with `output`, `label`")
        yield row
