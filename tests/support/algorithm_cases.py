"""Rows of a step as plain lists, in python's own doubles, and as the columns that algorithms are given."""

import random
from typing import get_args

import msgspec
import torch

from areal_actors.training.algorithms import AnyAlgorithm, Batch, CustomAlgorithm, StepTokens

EVERY = {kind.__struct_config__.tag: kind for kind in get_args(AnyAlgorithm) if kind is not CustomAlgorithm}
"""All algorithms of the package."""

FROM_REWARDS = {tag: kind for tag, kind in EVERY.items() if kind.learns_from == "episodes"}

WEIGHT_VERSION = 7


SEVERAL = {
    "sizes": ((3, 1), (2,), (0, 2, 1), (4,), (1, 0), (2, 2), (3,), (5,)),
    "groups": (0, 0, 1, 1, 0, 1, 2, 1),
    "episodes": (0, 0, 1, 2, 3, 1, 4, 5),
}
"""Episodes of several calls, some without a trained token, in several rows that do not lie together; one is a group of
its own."""


class Story(msgspec.Struct):
    """A row: what is known of its calls, a tuple each, and of its trained tokens, a list each."""

    group: int
    episode: int
    sizes: tuple[int, ...]
    rewards: tuple[float, ...]
    sampled: tuple[int, ...]
    truncated: tuple[bool, ...]
    last_value: float
    advantages: list[float]
    behaviour: list[float]
    versions: list[int]
    proximal: list[float]
    logp: list[float]
    reference: list[float]
    teacher: list[float]
    values: list[float]
    returns: list[float]

    @property
    def baseline(self) -> float:
        """Role-wise baseline of its episode."""
        return 0.1 * self.episode - 0.3


def stories(seed=0, sizes=(3, 1, 5, 0, 2, 4, 1, 6), groups=(0, 0, 1, 1, 0, 1, 2, 1), rewards=None, episodes=None):
    """Ragged rows of interleaved groups, one of them a group of one; a size of 0 is a row without a trained token.

    A size is the trained tokens of a row of one call, or those of each of its calls. Every row is an episode of its own
    unless `episodes` names those of rows.
    """
    rng = random.Random(seed)

    def column(size, low=-3.0, high=-0.1):
        return [rng.uniform(low, high) for _ in range(size)]

    rows = []
    for place, (shape, group) in enumerate(zip(sizes, groups, strict=True)):
        calls = (shape,) if isinstance(shape, int) else shape
        size = sum(calls)
        behaviour = column(size)
        near = [value + rng.uniform(-0.9, 0.9) for value in behaviour]
        story = Story(
            group=group,
            episode=place if episodes is None else episodes[place],
            sizes=calls,
            rewards=tuple(rng.choice([0.0, 0.25, 1.0]) if rewards is None else rewards[place] for _ in calls),
            sampled=tuple(own + rng.randrange(3) for own in calls),
            truncated=tuple(rng.random() < 0.4 for _ in calls),
            last_value=rng.uniform(-1.0, 1.0),
            advantages=column(size, -2.0, 2.0),
            behaviour=behaviour,
            versions=[rng.randint(WEIGHT_VERSION - 3, WEIGHT_VERSION) for _ in range(size)],
            proximal=near,
            logp=[value + rng.uniform(-0.5, 0.5) for value in near],
            reference=column(size),
            teacher=column(size),
            values=column(size, -1.0, 1.0),
            returns=column(size, -1.0, 1.0),
        )
        rows.append(story)
    return rows


def flat(rows, name):
    return torch.tensor([value for row in rows for value in getattr(row, name)], dtype=torch.float64)


def places(rows):
    return torch.tensor([place for place, row in enumerate(rows) for _ in row.behaviour], dtype=torch.int64)


def step_of(rows):
    """Input of `advantages`, in float64."""
    calls = [(place, number) for place, row in enumerate(rows) for number in range(len(row.sizes))]
    episodes = list(dict.fromkeys(row.episode for row in rows))
    group_of = {row.episode: row.group for row in rows}
    ends = {row.episode: place for place, row in enumerate(rows)}
    return StepTokens(
        sequences=places(rows),
        calls=integers(index for index, (place, number) in enumerate(calls) for _ in range(rows[place].sizes[number])),
        rewards=torch.tensor([rows[place].rewards[number] for place, number in calls], dtype=torch.float64),
        call_sequences=integers(place for place, _ in calls),
        samples=integers(episodes.index(rows[place].episode) for place, _ in calls),
        groups=integers(group_of[episode] for episode in episodes),
        sampled=integers(rows[place].sampled[number] for place, number in calls),
        truncated=torch.tensor([rows[place].truncated[number] for place, number in calls]),
        baselines=torch.tensor([rows[place].baseline for place, _ in calls], dtype=torch.float64),
        versions=flat(rows, "versions").long(),
        weight_version=WEIGHT_VERSION,
        last_values=torch.tensor(
            [
                row.last_value if row.truncated[-1] and ends[row.episode] == place else 0.0
                for place, row in enumerate(rows)
            ],
            dtype=torch.float64,
        ),
        **{name: flat(rows, name) for name in ("behaviour", "proximal", "reference", "teacher", "values")},
    )


def integers(values):
    return torch.tensor(list(values), dtype=torch.int64)


def batch_of(rows, order=None):
    """Input of `loss`, in float64, with rows in `order` if given; returned with the current log-probabilities."""
    order = range(len(rows)) if order is None else order
    dealt = [rows[place] for place in order]
    repeated = [(place, row) for place, row in zip(order, dealt, strict=True) for _ in row.behaviour]
    names = ("advantages", "behaviour", "proximal", "reference", "teacher", "values", "returns")
    batch = Batch(
        sequences=torch.tensor([place for place, _ in repeated], dtype=torch.int64),
        groups=torch.tensor([row.group for _, row in repeated], dtype=torch.int64),
        rewards=torch.tensor([row.rewards[0] for _, row in repeated], dtype=torch.float64),
        versions=flat(dealt, "versions").long(),
        weight_version=WEIGHT_VERSION,
        **{name: flat(dealt, name) for name in names},
    )
    return batch, flat(dealt, "logp")


def by_row(column, rows, order=None):
    """A column of tokens as one list per row."""
    order = range(len(rows)) if order is None else order
    values, lists = iter(column.tolist()), {}
    for place in order:
        lists[place] = [next(values) for _ in rows[place].behaviour]
    return [lists[place] for place in range(len(rows))]


def with_advantages(rows, advantages):
    return [msgspec.structs.replace(row, advantages=column) for row, column in zip(rows, advantages, strict=True)]
