"""Rows that cannot be trained are named by episode, row and token, and the decision is deterministic."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from support.samples import batch, interaction, trajectory

from areal_actors.batching.assembler import BatcherConfig
from areal_actors.batching.batcher import Batcher
from areal_actors.core.values import TokenColumns, VersionSpan, pack_ids
from areal_actors.messages import BatchFormed, TrajectoryExported
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.sequence_check import SequenceLimits, batch_sequences

LIMITS = SequenceLimits(vocabulary=128, context=12)
BATCH = batch(3, 0)
"""Trained by the weights of version 3."""


def with_columns(turn, **columns):
    return msgspec.structs.replace(turn, completion=msgspec.structs.replace(turn.completion, **columns))


def turn(identifier="a", text="abcd", version=2, **fields):
    return interaction(identifier, text, version, **fields)


def logprobs(*values):
    return np.asarray(values, dtype="<f4").tobytes()


def span(version, start, end):
    return VersionSpan(weight_version=version, start=start, end=end)


ROW_FAULTS = {
    "nan": (with_columns(turn(), logprobs=logprobs(-1, -1, math.nan, -1)), 3, "log-probability at token 3: nan"),
    "positive": (with_columns(turn(), logprobs=logprobs(-1, 0.5, -1, -1)), 2, "log-probability at token 2: 0.5"),
    "minus infinite": (
        with_columns(turn(), logprobs=logprobs(-1, -math.inf, -1, -1)),
        2,
        "log-probability at token 2: -inf",
    ),
    "id": (with_columns(turn(), token_ids=pack_ids([97, 98, 99, 128])), 4, "vocabulary at token 4: id 128"),
    "id of the prompt": (
        msgspec.structs.replace(turn(), prompt_suffix=pack_ids([500])),
        0,
        "vocabulary at token 0: id 500",
    ),
    "newer": (
        turn(version=4),
        1,
        "weight version at token 1: weight version 4; the trainer's weights are of version 3",
    ),
    "long": (turn(text="a" * 12), -1, "context: 13 tokens; the model's context has 12"),
}
TRAJECTORY_FAULTS = {
    "fewer logprobs": (
        trajectory("0.1", with_columns(turn(), logprobs=logprobs(-1, -1, -1))),
        "column lengths: in interaction a: 4 token ids",
    ),
    "half an id": (trajectory("0.1", with_columns(turn(), token_ids=b"12345", logprobs=b"12345")), "column lengths"),
    "gap": (
        trajectory("0.1", with_columns(turn(), versions=(span(1, 0, 2), span(2, 3, 4)))),
        "version spans at token 2: in interaction a",
    ),
    "negative": (trajectory("0.1", with_columns(turn(), versions=(span(-1, 0, 4),))), "weight version at token 0"),
    "huge": (trajectory("0.1", with_columns(turn(), versions=(span(2**40, 0, 4),))), "weight version at token 0"),
    "empty": (
        trajectory("0.1", msgspec.structs.replace(turn(), completion=TokenColumns())),
        "empty: interaction a has no sampled token",
    ),
    "no interaction": (
        msgspec.structs.replace(trajectory("0.1"), interactions=()),
        "empty: the trajectory has no interaction",
    ),
    "reward": (trajectory("0.1", turn(), reward=math.nan), "reward: reward nan"),
    "reward of a call": (trajectory("0.1", msgspec.structs.replace(turn(), reward=math.inf)), "reward: reward inf"),
    "circle": (
        trajectory("0.1", turn("a", parent="b"), turn("b", parent="a"), turn("c", parent="b")),
        "conversation tree",
    ),
    "half a prompt": (
        trajectory("0.1", msgspec.structs.replace(turn(), prompt_suffix=b"123")),
        "3 bytes of prompt ids",
    ),
}


def sequences_of(*trajectories, credit=None):
    return batch_sequences(BATCH, [(0, one) for one in trajectories], credit or Credit(), LIMITS)


@pytest.mark.parametrize("name", ROW_FAULTS)
def test_a_row_that_cannot_be_trained_is_left_out_by_row_and_token(name):
    bad, token, words = ROW_FAULTS[name]
    found = sequences_of(trajectory("0.0"), trajectory("0.1", bad), trajectory("0.2"))
    assert len(found.sequences) == 2
    (refused,) = found.refused
    assert (refused.episode, refused.sequence, refused.token) == ("0.1", 1, token)
    assert words in refused.cause


@pytest.mark.parametrize("name", TRAJECTORY_FAULTS)
def test_a_trajectory_of_which_no_rows_can_be_made_is_left_out_whole(name):
    bad, words = TRAJECTORY_FAULTS[name]
    found = sequences_of(trajectory("0.0"), bad, trajectory("0.2"))
    assert len(found.sequences) == 2
    (refused,) = found.refused
    assert (refused.episode, refused.sequence, refused.token) == ("0.1", -1, -1)
    assert words in refused.cause


def test_only_the_rows_that_hold_the_poison_are_left_out_of_a_trajectory():
    bad = with_columns(turn("b", prompt="!"), logprobs=logprobs(-1, -1, math.nan, -1))
    found = sequences_of(
        trajectory("0.0", turn("a"), bad, turn("c", text="x", parent="a")), credit=Credit(style="individual")
    )
    assert [row.token_ids.tolist() for row in found.sequences] == [
        [63, 97, 98, 99, 100],
        [63, 97, 98, 99, 100, 63, 120],
    ]
    assert [(one.sequence, one.token) for one in found.refused] == [(1, 3)]


def test_what_can_be_trained_is_trained_as_it_is():
    good = trajectory("0.0", with_columns(turn(), logprobs=logprobs(0.0, 5e-5, -1e30, -1)))
    (row,) = sequences_of(good).sequences
    assert row.logprobs.tolist() == np.array([0, 0.0, 5e-5, -1e30, -1], dtype=np.float32).tolist()
    unlimited = batch_sequences(BATCH, [(0, trajectory("0.0", turn(text="x" * 500)))], Credit(), SequenceLimits())
    assert len(unlimited.sequences) == 1


async def test_the_batcher_lets_an_empty_trajectory_of_an_older_log_pass(send):
    """Nothing poisonous enters the log any more, but an older log is resumed too."""
    made = [
        trajectory(f"0.{number}", msgspec.structs.replace(turn(), completion=TokenColumns())) for number in range(2)
    ]
    batcher = Batcher(BatcherConfig(exit_policy="keep"), group_size=2, batch_size=1, max_staleness=1, steps=2)
    batcher.assembler.weights_published(0)
    emitted = await send(batcher, *(TrajectoryExported(trajectory=one) for one in made))
    assert [type(one) for one in emitted] == [BatchFormed]
