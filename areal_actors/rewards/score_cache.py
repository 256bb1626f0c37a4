"""Scores kept by the text of their task and output: a judge that costs money is not asked the same twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
import xxhash

from areal_actors.rewards import Score

CACHED = "cached"
"""Metric: 1 for a score that was not computed again, else 0."""

SPENT = "judge_"
"""Prefix of metrics of what was spent on a score: 0 for one that was not computed again."""


class ScoreCache:
    """The last scores, at most `size` of them; failures are not kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._scores: OrderedDict[bytes, Score] = OrderedDict()

    def key(self, task: Mapping[str, Any], output: str) -> bytes:
        """Returns the digest of a task's row, without its id, and an output."""
        row = {name: value for name, value in task.items() if name != "id"}
        return xxhash.xxh3_128_digest(msgspec.msgpack.encode((row, output), order="sorted"))

    def get(self, key: bytes) -> Score | None:
        """Returns the kept score with the metric `cached` = 1; None if there is none."""
        score = self._scores.get(key)
        if score is None:
            return None
        self._scores.move_to_end(key)
        unspent = {name: 0.0 for name in score.metrics if name.startswith(SPENT)}
        return score.with_metrics({**score.metrics, **unspent, CACHED: 1.0})

    def put(self, key: bytes, score: Score) -> Score:
        """Keep a score; returns it with the metric `cached` = 0."""
        self._scores[key] = score
        if len(self._scores) > self.size:
            self._scores.popitem(last=False)
        return score.with_metrics({**score.metrics, CACHED: 0.0})
