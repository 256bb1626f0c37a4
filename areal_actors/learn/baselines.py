"""Baselines without groups: the reward that a call would have had on average, predicted from other sessions.

A baseline that does not depend on the call's own session leaves the policy gradient unbiased, whatever it is, and the
smaller the residual R - b, the smaller the gradient's variance. So each candidate is fitted without the session that it
is for, and the one with the least mean square of residuals is taken:

    all sessions       mean reward of all other sessions
    task, user, prompt mean of the other sessions of the same task, user or prompt, drawn towards that of all by one
                       session's weight
    similar prompts    mean of the `NEIGHBOURS` nearest prompts, by n-grams of tokens
    regression         ridge regression on n-grams of tokens, of sessions in `FOLDS` parts, each predicted by the others

This is leave-one-out cross-validation for means and neighbours (closed form), and tenfold for the regression.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from areal_actors.core.lazy import LazyModule
from areal_actors.learn.recorded_calls import RecordedCall

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

Floats = Any
"""float64 array."""

FEATURES = 512
"""Buckets of hashed n-grams."""
TOKENS = 256
"""Last tokens of a prompt that are looked at."""
NEIGHBOURS = 16
FOLDS = 10
PENALTIES = (1.0, 10.0, 100.0)
LEAST_CALLS = 50
"""Calls below which only means are tried."""
MOST_REFERENCES = 8192
"""Calls among which neighbours are looked for; with more, every n-th."""
LEAST_GAIN = 0.01
"""Share of the residual variance by which a baseline must be better than a simpler one."""


class Baseline(msgspec.Struct, frozen=True):
    """A chosen baseline."""

    name: str
    values: tuple[float, ...]
    """Baseline of each call, in the order of the calls."""
    variances: dict[str, float]
    """Mean square of R - b under each candidate."""


def choose_baseline(calls: Sequence[RecordedCall]) -> Baseline:
    """Returns the candidate with the least residual variance; of nearly equal ones the simplest.

    Args:
        calls: at least one call; those of one session predict nothing about each other.
    """
    rewards = np.array([call.reward for call in calls], np.float64)
    sessions = _number_keys([call.session for call in calls])
    candidates = dict(_candidates(calls, rewards, sessions))
    variances = {name: float(np.square(rewards - values).mean()) for name, values in candidates.items()}
    chosen = next(iter(candidates))
    for name, variance in variances.items():
        if variance < variances[chosen] * (1.0 - LEAST_GAIN):
            chosen = name
    return Baseline(name=chosen, values=tuple(candidates[chosen].tolist()), variances=variances)


def _candidates(calls: Sequence[RecordedCall], rewards: Floats, sessions: Floats) -> Iterator[tuple[str, Floats]]:
    """Yields name and values of each baseline, simplest first."""
    overall = _means_of_others(rewards, sessions, np.zeros(len(calls), np.int64), prior=rewards * 0.0, weight=0.0)
    yield "all sessions", overall
    keys: dict[str, list[Hashable]] = {
        "task": [call.task for call in calls],
        "user": [call.user for call in calls],
        "prompt": [call.prompt for call in calls],
    }
    for name, values in keys.items():
        if len(set(values)) > 1:
            yield name, _means_of_others(rewards, sessions, _number_keys(values), prior=overall, weight=1.0)
    if len(calls) >= LEAST_CALLS:
        features = prompt_features([call.prompt for call in calls])
        yield "similar prompts", _nearest(rewards, sessions, features)
        yield "regression", _regression(rewards, sessions, features)


def _number_keys(keys: Sequence[Hashable]) -> Floats:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


def _means_of_others(rewards: Floats, sessions: Floats, groups: Floats, *, prior: Floats, weight: float) -> Floats:
    """Returns the mean reward of the calls of a call's group that are of other sessions, with a prior of a weight."""
    pairs, inverse = np.unique(np.stack([groups, sessions]), axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    sums, counts = np.bincount(groups, rewards), np.bincount(groups)
    own_sums = np.bincount(inverse, rewards, minlength=pairs.shape[1])[inverse]
    own_counts = np.bincount(inverse, minlength=pairs.shape[1])[inverse]
    others = counts[groups] - own_counts + weight
    total = sums[groups] - own_sums + weight * prior
    return np.where(others > 0, total / np.maximum(others, 1e-12), prior)


def prompt_features(prompts: Sequence[Sequence[int]]) -> Floats:
    """Returns hashed counts of single tokens and of pairs, each row of length 1: float32 `[prompts, FEATURES]`."""
    features = np.zeros((len(prompts), FEATURES), np.float32)
    buckets: dict[tuple[int, ...], int] = {}
    for row, prompt in enumerate(prompts):
        last = prompt[-TOKENS:]
        for gram in (*((token,) for token in last), *pairwise(last)):
            if (bucket := buckets.get(gram)) is None:
                bucket = buckets[gram] = zlib.crc32(array("q", gram).tobytes()) % FEATURES
            features[row, bucket] += 1.0
    features = np.log1p(features)
    centred = features - features.mean(axis=0)  # nothing is predicted by what all prompts share
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-6)


def _nearest(rewards: Floats, sessions: Floats, features: Floats) -> Floats:
    """Returns the mean reward of the nearest prompts of other sessions."""
    step = -(-len(rewards) // MOST_REFERENCES)
    references = np.arange(0, len(rewards), step)
    count = min(NEIGHBOURS, len(references) - 1)
    values = np.zeros(len(rewards))
    for first in range(0, len(rewards), 1024):
        block = slice(first, first + 1024)
        similarity = features[block] @ features[references].T
        similarity[sessions[block, None] == sessions[references]] = -np.inf
        nearest = np.argpartition(-similarity, count - 1, axis=1)[:, :count]
        values[block] = rewards[references[nearest]].mean(axis=1)
    return values


def _regression(rewards: Floats, sessions: Floats, features: Floats) -> Floats:
    """Returns the predictions of ridge regression for each part of the sessions, by the others."""
    folds = np.array([zlib.crc32(str(session).encode()) % FOLDS for session in range(int(sessions.max()) + 1)])[
        sessions
    ]
    columns = np.hstack([features.astype(np.float64), np.ones((len(rewards), 1))])
    gram, moment = columns.T @ columns, columns.T @ rewards
    predictions = np.zeros((len(PENALTIES), len(rewards)))
    for fold in range(FOLDS):
        part = columns[folds == fold]
        rest, target = gram - part.T @ part, moment - part.T @ rewards[folds == fold]
        for number, penalty in enumerate(PENALTIES):
            ridge = np.eye(len(rest)) * penalty
            ridge[-1, -1] = 1e-6  # the constant is not drawn to 0
            predictions[number, folds == fold] = part @ np.linalg.solve(rest + ridge, target)
    errors = np.square(predictions - rewards).mean(axis=1)
    return predictions[int(errors.argmin())]
