"""Completions are checked once, where they enter the gateway: an invalid one is refused by check, token and value."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_actors.core.column_check import LOGPROB_TOLERANCE
from areal_actors.core.values import SamplingParams, TokenColumns, VersionSpan, pack_ids
from areal_actors.gateway.completion_check import CompletionCheck, CompletionFault, PublishedVersions
from areal_actors.messages import Generated
from areal_actors.runtime.named_wait import NamedWait

VOCABULARY, NEWEST, MOST = 100, 5, 8


def check(top=0, newest=NEWEST, vocabulary=VOCABULARY):
    return CompletionCheck(PublishedVersions(newest), vocabulary, SamplingParams(max_tokens=MOST, top_logprobs=top))


def part(ids=(1, 2, 3, 4), logprobs=None, versions=None, reason="stop", **fields):
    """Columns as an engine may send them: `versions` are (version, start, end)."""
    logprobs = [-0.5] * len(ids) if logprobs is None else logprobs
    versions = ((3, 0, len(ids)),) if versions is None else versions
    columns = TokenColumns(
        token_ids=pack_ids(ids),
        logprobs=np.asarray(logprobs, dtype="<f4").tobytes(),
        versions=tuple(VersionSpan(weight_version=version, start=start, end=end) for version, start, end in versions),
    )
    return Generated(columns=columns, finish_reason=reason, **fields)


FAULTS = {
    "nan": (part(logprobs=[-1, math.nan, -1, -1]), "log-probability at token 1: nan"),
    "infinite": (part(logprobs=[-1, -1, math.inf, -1]), "log-probability at token 2: inf"),
    "minus infinite": (part(logprobs=[-math.inf, -1, -1, -1]), "log-probability at token 0: -inf"),
    "positive": (part(logprobs=[-1, -1, -1, 0.25]), "log-probability at token 3: 0.25; a finite number of at most 0"),
    "positive beside nan": (part(logprobs=[-1, 1.0, math.nan, -1]), "log-probability at token 1: 1"),
    "beyond the vocabulary": (part((1, 2, 100, 4)), "vocabulary at token 2: id 100; the model's ids are 0 to 99"),
    "largest id": (part((1, 2**32 - 1)), "vocabulary at token 1: id 4294967295"),
    "too many": (
        part(range(9)),
        "too many tokens at token 8: 8 tokens were asked for, 0 were sampled before, and 9 more came",
    ),
    "fewer logprobs": (part(logprobs=[-1, -1, -1]), "column lengths: 4 token ids and 3 log-probabilities"),
    "half a token": (
        Generated(columns=TokenColumns(token_ids=b"12345", logprobs=b"12345"), finish_reason="stop"),
        "column lengths",
    ),
    "not yet published": (
        part(versions=((3, 0, 2), (6, 2, 4))),
        "weight version at token 2: weight version 6; the newest that was published is 5",
    ),
    "negative": (part(versions=((-1, 0, 4),)), "weight version at token 0: weight version -1"),
    "decreasing": (part(versions=((3, 0, 2), (2, 2, 4))), "weight version at token 2: weight version 2 after 3"),
    "a gap": (part(versions=((3, 0, 1), (4, 2, 4))), "version spans at token 1: a span from 2 to 4 follows token 1"),
    "overlap": (part(versions=((3, 0, 3), (4, 2, 4))), "version spans at token 3"),
    "too short": (part(versions=((3, 0, 3),)), "version spans at token 3: spans cover 3 of 4 tokens"),
    "too long": (part(versions=((3, 0, 5),)), "version spans at token 5: spans cover 5 of 4 tokens"),
    "empty span": (part(versions=((3, 0, 4), (4, 4, 4))), "version spans at token 4"),
    "no versions": (part(versions=()), "version spans at token 0"),
    "no tokens": (part((), (), ()), "no tokens: the inference worker ended the completion without a single token"),
    "nothing at all": (
        part((), (), (), ""),
        "no tokens: the inference worker answered without tokens or a finish reason",
    ),
    "unknown reason": (part(reason="tired"), "finish reason: 'tired'; 'stop' or 'length' was expected"),
    "error": (Generated(error="out of memory"), "engine error: out of memory"),
    "unasked top": (
        part(top_ids=pack_ids([1]), top_logprobs=b"\0\0\0\0"),
        "top log-probabilities: 1 ids and 1 log-probabilities; 4 tokens of 0",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_true_is_refused_by_check_token_and_value(name):
    generated, words = FAULTS[name]
    checks = check()
    with pytest.raises(CompletionFault) as refused:
        checks.validate(generated, 0)
    assert words in str(refused.value)
    checks.validate(part(), 0)


@pytest.mark.parametrize(
    ("ids", "logprobs", "words"),
    [
        ([1] * 7, [-1.0] * 8, "7 ids and 8 log-probabilities; 4 tokens of 2 each were expected"),
        ([1] * 6, [-1.0] * 6, "6 ids and 6 log-probabilities"),
        ([1, 1, 1, 1, 1, 100, 1, 1], [-1.0] * 8, "top log-probabilities at token 2: id 100"),
        ([1] * 8, [-1.0] * 7 + [math.nan], "top log-probabilities at token 3: nan"),
    ],
)
def test_top_log_probabilities_have_their_shape_and_are_numbers(ids, logprobs, words):
    generated = part(top_ids=pack_ids(ids), top_logprobs=np.asarray(logprobs, dtype="<f4").tobytes())
    with pytest.raises(CompletionFault, match=words):
        check(top=2).validate(generated, 0)
    check(top=2).validate(part(top_ids=pack_ids([1] * 8), top_logprobs=np.full(8, -1.0, "<f4").tobytes()), 0)


def test_later_parts_are_counted_from_the_completion_s_beginning():
    checks = check()
    checks.validate(part(reason=""), 0)
    with pytest.raises(CompletionFault, match="log-probability at token 6: nan"):
        checks.validate(part(logprobs=[-1, -1, math.nan, -1]), 4)
    with pytest.raises(CompletionFault, match="8 tokens were asked for, 6 were sampled before, and 4 more came"):
        checks.validate(part(), 6)
    with pytest.raises(CompletionFault, match="weight version at token 4: weight version 2 after 3"):
        checks.validate(part(versions=((2, 0, 4),)), 4)
    checks.validate(part((), (), ()), 4)


def test_a_worker_that_takes_over_may_have_older_weights():
    checks = check()
    checks.validate(part(reason=""), 0)
    checks.reset_version()
    checks.validate(part(versions=((2, 0, 4),)), 4)


def test_rounding_is_accepted_as_it_is():
    checks = check()
    checks.validate(part(logprobs=[0.0, LOGPROB_TOLERANCE / 2, -1e30, -0.0]), 0)
    with pytest.raises(CompletionFault):
        checks.validate(part(logprobs=[0.0, LOGPROB_TOLERANCE * 2, -1, -1]), 4)


def test_without_a_known_vocabulary_every_id_is_accepted():
    check(vocabulary=0).validate(part((1, 2**32 - 1)), 0)


class Waiting:
    """The handling of a message, as far as waits have names in it."""

    def __init__(self):
        self.waits = {}

    def waiting(self, name, seconds):
        return NamedWait(self.waits, lambda: 0.0, name, seconds)


async def test_a_worker_may_load_new_weights_before_the_gateway_sees_them():
    checks, turn = check(newest=2), Waiting()
    waiting = asyncio.create_task(checks.until_published(part(), turn))
    await asyncio.sleep(0.01)
    assert [wait.name for wait in turn.waits.values()] == ["the publication of weight version 3"]
    await checks.published.publish(3)
    await waiting
    checks.validate(part(), 0)
    assert not turn.waits


async def test_the_wait_for_an_unpublished_version_is_bounded():
    published = PublishedVersions(2)
    await published.wait(3, Waiting(), seconds=0.01)
    assert published.newest == 2


SPANS = st.lists(st.tuples(st.integers(-2, 7), st.integers(-1, 6), st.integers(-1, 6)), max_size=3)


@given(
    ids=st.lists(st.integers(0, 101), max_size=6),
    logprobs=st.none() | st.lists(st.floats(width=32), max_size=6),
    versions=st.none() | SPANS,
    reason=st.sampled_from(["", "stop", "length", "tool_calls"]),
    extra=st.sampled_from([b"", b"\0", b"\0\0\0\0"]),
)
def test_whatever_is_accepted_is_sound_and_whatever_is_not_is_a_fault(ids, logprobs, versions, reason, extra):
    generated = part(ids, logprobs, versions, reason, top_ids=extra)
    try:
        check().validate(generated, 0)
    except CompletionFault:
        return
    columns = generated.columns
    assert reason in ("stop", "length") or len(columns)
    assert len(columns) == len(columns.logprobs_array()) <= MOST
    assert (columns.ids_array() < VOCABULARY).all()
    assert np.isfinite(columns.logprobs_array()).all()
    assert (columns.logprobs_array() <= LOGPROB_TOLERANCE).all()
    covered = [place for span in columns.versions for place in range(span.start, span.end)]
    assert covered == list(range(len(columns)))
    made_by = columns.versions_array().tolist()
    assert made_by == sorted(made_by)
    assert all(0 <= version <= NEWEST for version in made_by)
