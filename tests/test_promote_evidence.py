"""Evidence of `promote` beside users' rewards: answers of both versions, a judged shadow, divergence."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.samples import interaction
from test_canary import Sessions

from areal_actors.canary.report import describe_comparison
from areal_actors.canary.trial import REWARD
from areal_actors.canary.verdict import judge_candidate
from areal_actors.core.errors import SetupError
from areal_actors.messages import ConversationKept, SessionsErased, ShadowAnswered
from areal_actors.promote.divergence import divergence_of
from areal_actors.promote.judged_shadow import compare_judged
from areal_actors.promote.sampled_answers import SampledAnswer, SampledAnswers


def shadowed(count, served="no", candidate="yes"):
    """Sessions of a shadow with one answer of each version, the first without consent, the second erased."""
    log, answers = Sessions(mode="shadow", share=1.0), SampledAnswers()
    for number in range(count):
        name, version = log.start(consent=number > 0)
        assert version == 0
        call = interaction(f"{name}-1", served)
        log.fold(
            ShadowAnswered(
                session=name,
                interaction=call.id,
                weight_version=1,
                answer=interaction(f"{call.id}-shadow", candidate),
                served_tokens=2,
            )
        )
        log.fold(ConversationKept(session=name, episode="", group="", attempt=1, interactions=(call,)))
    log.fold(SessionsErased(sessions=("t-1",)))
    for event in log.events:
        answers.fold(event)
    return log.trial, answers


def decode(ids):
    return "".join(map(chr, ids))


def judge_of(trial, answers, judge):
    judged = compare_judged(answers.pairs(), judge, "mine.py:judge", trial.published, decode)
    trial.comparisons[REWARD] = judged
    return judge_candidate(trial)


def test_answers_are_those_of_each_version_without_erased_sessions_and_those_without_consent():
    _, answers = shadowed(4)
    served = [(answer.session, decode(answer.token_ids)) for answer in answers.answers(is_candidate=False)]
    assert served == [("t-2", "no"), ("t-3", "no")]
    candidate = [(answer.session, decode(answer.token_ids)) for answer in answers.answers(is_candidate=True)]
    assert candidate == [("t-2", "yes"), ("t-3", "yes")]
    ((pair,),) = [pairs for pairs in answers.pairs() if pairs[0].served.session == "t-2"]
    assert pair.served.prompt == pair.candidate.prompt


def test_a_shadow_is_promoted_by_a_judge_and_not_without_one():
    trial, answers = shadowed(400)
    assert "judge them with --reward" in judge_candidate(trial).reason
    verdict = judge_of(trial, answers, lambda prompt, answer: float(answer == "yes"))
    assert verdict.decision == "promoted"
    text = describe_comparison(trial, verdict, ["rewards are those of mine.py:judge"])
    assert "rewarded sessions: 398 of the candidate, 398 of the served version" in text
    assert text.index("rewards are those of mine.py:judge") < text.index("promoted:")
    assert judge_of(trial, answers, lambda prompt, answer: float(answer == "no")).decision == "rolled back"


def test_a_judge_that_sees_no_difference_needs_more_sessions_one_a_pair():
    trial, answers = shadowed(12)
    verdict = judge_of(trial, answers, lambda prompt, answer: 0.5)
    assert (verdict.decision, verdict.needed) == (None, 10)


@pytest.mark.parametrize(
    ("judge", "message"), [(lambda p, a: float("nan"), "returned nan"), (lambda p, a: 1 / 0, "raised")]
)
def test_a_judge_that_fails_is_named_with_its_session(judge, message):
    trial, answers = shadowed(4)
    with pytest.raises(SetupError, match=f"--reward: mine.py:judge {message}.*session t-2"):
        judge_of(trial, answers, judge)


def test_the_divergence_is_that_of_the_two_distributions():
    own, other = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    draws = np.random.default_rng(5).choice(3, (200, 50), p=own)
    answers = [
        SampledAnswer(f"s{number // 2}", [], row.tolist(), np.log(own[row]).tolist(), None)
        for number, row in enumerate(draws)
    ]
    measured = divergence_of(answers, np.log(other[draws.ravel()]), random.Random(0))
    expected = float((own * np.log(own / other)).sum())
    assert measured.low < expected < measured.high
    assert measured.high - measured.low < 0.02
    assert (measured.answers, measured.sessions) == (200, 100)
    same = divergence_of(answers, np.log(own[draws.ravel()]), random.Random(0))
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
