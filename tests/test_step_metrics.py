from __future__ import annotations

import zlib

import msgspec
import numpy as np
import pytest
from support.samples import batch, interaction, trajectory

from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.step_metrics import batch_metrics, sequences_checksum


def rows(*trajectories, oldest=0):
    return [row for group, one in enumerate(trajectories) for row in sequences_of(one, group, oldest)]


TWO = (
    trajectory("0.0", interaction("a", "1234", 3, 4, 5, 5, prompt="QQ"), reward=1.0),
    trajectory("1.0", interaction("b", "56", 5, 5, finish_reason="length"), reward=0.0),
)
FORMED = msgspec.structs.replace(
    batch(5, 0, 1), trained_trajectories=2, trained_tokens=6, dropped_trajectories=1, dropped_tokens=7
)


def test_staleness_is_counted_from_the_version_that_trains():
    metrics = batch_metrics(rows(*TWO, oldest=4), FORMED)
    assert metrics["token_staleness_max"] == 1
    assert metrics["token_staleness_mean"] == pytest.approx(1 / 5)
    assert metrics["head_staleness_max"] == 2
    assert metrics["head_staleness_mean"] == 1.0
    assert metrics["versions_in_batch"] == 2


def test_shares_lengths_and_rewards():
    metrics = batch_metrics(rows(*TWO, oldest=4), FORMED)
    assert metrics["masked_frac"] == pytest.approx(1 / 6)
    assert (metrics["sampled_tokens"], metrics["mean_tokens"], metrics["dropped_tokens"]) == (6, 3, 7)
    assert metrics["length_bias"] == pytest.approx(3 / (13 / 3))
    assert (metrics["truncated_frac"], metrics["reward_mean"]) == (0.5, 0.5)


@pytest.mark.parametrize("style", ["concat", "individual"])
def test_an_episode_counts_once_and_so_does_each_of_its_tokens_however_many_rows_it_became(style):
    second = msgspec.structs.replace(
        interaction("c", "777", 4, prompt="!", finish_reason="length"), parent="a", prefix="a"
    )
    long = msgspec.structs.replace(TWO[0], interactions=(*TWO[0].interactions, second))
    credit = Credit(style=style)
    made = [row for group, one in enumerate((long, TWO[1])) for row in sequences_of(one, group, 4, credit)]
    assert len(made) == (2 if style == "concat" else 3)
    metrics = batch_metrics(made, FORMED)
    assert (metrics["sampled_tokens"], metrics["mean_tokens"]) == (9, 4.5)
    assert metrics["masked_frac"] == pytest.approx(1 / 9)
    assert metrics["head_staleness_mean"] == 1.0
    assert (metrics["truncated_frac"], metrics["reward_mean"]) == (1.0, 0.5)


def test_calls_whose_tool_call_was_not_read_are_counted_by_cause():
    unread = msgspec.structs.replace(TWO[0].interactions[0], call_problem="tools_tag")
    metrics = batch_metrics(rows(msgspec.structs.replace(TWO[0], interactions=(unread,)), TWO[1], oldest=4), FORMED)
    assert (metrics["tool_call_error"], metrics["tool_call_error/tools_tag"]) == (0.5, 0.5)
    assert batch_metrics(rows(*TWO, oldest=4), FORMED)["tool_call_error"] == 0.0


def test_calls_whose_requests_had_fields_without_effect_are_counted():
    call = msgspec.structs.replace(TWO[0].interactions[0], fields_ignored=True)
    metrics = batch_metrics(rows(msgspec.structs.replace(TWO[0], interactions=(call,)), TWO[1], oldest=4), FORMED)
    assert metrics["calls_with_ignored_fields"] == 1.0
    assert "calls_with_ignored_fields" not in batch_metrics(rows(*TWO, oldest=4), FORMED)


def test_a_batch_of_which_every_token_is_masked_has_no_token_staleness():
    metrics = batch_metrics(rows(*TWO, oldest=9), FORMED)
    assert "token_staleness_mean" not in metrics
    assert metrics["masked_frac"] == 1.0
    assert all(np.isfinite(value) for value in metrics.values())


def test_the_checksum_is_that_of_what_the_engine_sampled_in_row_order():
    expected = 0
    for one in TWO:
        columns = one.interactions[0].completion
        expected = zlib.crc32(columns.logprobs, zlib.crc32(columns.token_ids, expected))
    assert sequences_checksum(rows(*TWO)) == f"{expected:08x}"
    assert sequences_checksum(rows(*TWO, oldest=9)) == f"{expected:08x}"
    assert sequences_checksum(rows(*reversed(TWO))) != f"{expected:08x}"
