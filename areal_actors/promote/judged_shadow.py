"""Answers of a shadow judged against those of the served version, so that a candidate is compared before users meet it.

A session is a pair of the means of both versions' answers to its calls, since calls of one session are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from areal_actors.canary.comparison import MetricComparison
from areal_actors.canary.trial import REWARD
from areal_actors.core.errors import SetupError
from areal_actors.messages import CandidatePublished
from areal_actors.promote.sampled_answers import AnswerPair, SampledAnswer

Judge = Callable[[str, str], float]
"""Quality of an answer by prompt and answer, both as the model had them."""
Decode = Callable[[Sequence[int]], str]


def compare_judged(
    sessions: Iterable[Sequence[AnswerPair]], judge: Judge, spec: str, at: CandidatePublished, decode: Decode
) -> MetricComparison:
    """Returns the comparison of the rewards of a judge, a pair for each session.

    Raises:
        SetupError: the judge failed, or returned no finite number; names the session.
    """
    significance = at.significance / (1 + len(at.limits))
    comparison = MetricComparison(REWARD, significance, threshold=at.least_difference, bounds=at.reward_range)
    for pairs in sessions:
        served = fmean(_judge(judge, spec, pair.served, decode) for pair in pairs)
        comparison.add_pair(served, fmean(_judge(judge, spec, pair.candidate, decode) for pair in pairs))
    return comparison


def _judge(judge: Judge, spec: str, answer: SampledAnswer, decode: Decode) -> float:
    try:
        reward = float(judge(decode(answer.prompt), decode(answer.token_ids)))
    except Exception as error:
        raise SetupError(f"--reward: {spec} raised {error!r} for session {answer.session}") from error
    if not math.isfinite(reward):
        raise SetupError(f"--reward: {spec} returned {reward!r} for session {answer.session}, expected a finite number")
    return reward
