"""Token columns are sent and logged as byte streams, and read back as they were, also from logs in which they are
whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.samples import interaction

from areal_actors.core.byte_stream_split import join_streams, split_streams, streams_needed
from areal_actors.core.values import SamplingParams, TokenColumns, Trajectory, pack_ids
from areal_actors.messages import ConversationKept, Generate, ShadowAnswered, TrajectoryExported
from areal_actors.messages.fields import PACKED, fields_of
from areal_bus.base import Envelope, Stamp
from areal_bus.recorded import read_log

RECORDINGS = Path(__file__).parent / "recordings"
STAMP = Stamp(id="an-id", sender="session_manager-0", time=1.0)
LARGEST = (0, 600, 65_535, 65_536, 151_935, 2**24, 2**32 - 1)


def exported(token_ids, logprobs=None):
    columns = TokenColumns.of(
        token_ids, logprobs or [-0.25 * index for index in range(len(token_ids))], [3] * len(token_ids)
    )
    turn = msgspec.structs.replace(interaction("i", "x"), prompt_suffix=pack_ids(token_ids[:2]), completion=columns)
    return TrajectoryExported(
        trajectory=Trajectory(episode="0.0", group="0", attempt=1, task="t", reward=1.0, interactions=(turn, turn))
    )


@pytest.mark.parametrize("largest", LARGEST)
@pytest.mark.parametrize("count", [0, 1, 33, 1000, 5000])
def test_every_column_is_read_back_as_it_was(largest, count):
    event = exported([(largest * (index + 1)) % (largest + 1) for index in range(count)])
    envelope = Envelope.seal(event, STAMP, "test")
    assert envelope.open(TrajectoryExported) == event
    assert all(turn.id_planes == 0 for turn in envelope.open(TrajectoryExported).trajectory.interactions)


@pytest.mark.parametrize("largest", LARGEST)
def test_the_prompt_of_a_request_is_read_back_as_it_was(largest):
    request = Generate(prompt_ids=pack_ids([0, largest, 7]), sampling=SamplingParams())
    assert Envelope.seal(request, STAMP, "test").open(Generate) == request


def test_ids_take_as_many_bytes_as_the_largest_of_them():
    sizes = [len(Envelope.seal(exported([largest] * 1000), STAMP, "test").body) for largest in (65_535, 65_536, 2**24)]
    assert [sizes[1] - sizes[0], sizes[2] - sizes[1]] == [
        2004,
        2004,
    ]  # two calls of 1,000 sampled tokens and two of the prompt


def test_an_event_is_not_changed_by_being_sent():
    event = exported([1, 2, 3])
    before = msgspec.msgpack.encode(event)
    Envelope.seal(event, STAMP, "test")
    assert msgspec.msgpack.encode(event) == before


@pytest.mark.parametrize(
    "damaged", [{"prompt_suffix": b"abc"}, {"completion": TokenColumns(token_ids=b"abcde", logprobs=b"abcd")}]
)
def test_columns_of_a_wrong_length_are_sent_as_they_are(damaged):
    turn = msgspec.structs.replace(interaction("i", "x"), **damaged)
    assert turn.pack() is turn


def test_planes_of_different_lengths_are_a_damaged_message():
    trajectory = exported([1, 2, 3]).pack().trajectory
    msgspec.structs.force_setattr(trajectory.interactions[0], "prompt_suffix", b"abc")
    body = msgspec.msgpack.encode({"trajectory": trajectory})
    with pytest.raises(msgspec.ValidationError, match="3 bytes are not 2 streams of one length"):
        msgspec.msgpack.decode(body, type=TrajectoryExported)


def test_the_recordings_of_both_formats_have_the_same_trajectories():
    earlier, now = (
        [
            one.open(TrajectoryExported)
            for one in read_log(RECORDINGS / f"log-{version}.xz")
            if one.subject == TrajectoryExported.subject
        ]
        for version in (2, 3)
    )
    assert earlier
    assert earlier == now
    bodies = [
        [one.body for one in read_log(RECORDINGS / f"log-{version}.xz") if one.subject == TrajectoryExported.subject]
        for version in (2, 3)
    ]
    assert all(len(packed) < len(whole) for whole, packed in zip(*bodies, strict=True))


def test_planes_are_the_lowest_bytes_first():
    column = pack_ids([0x010203, 0x040506])
    assert streams_needed(column) == 3
    assert split_streams(column, 3) == bytes([3, 6, 2, 5, 1, 4])
    assert join_streams(split_streams(column, 3), 3) == column


def test_fields_of_a_message_are_those_of_its_kind_and_a_monitor_can_read_the_planes():
    event = exported([3, 151_935, 7])
    envelope = Envelope.seal(event, STAMP, "test")
    assert set(PACKED.values()) == {Generate, TrajectoryExported, ConversationKept, ShadowAnswered}
    assert fields_of(envelope) == msgspec.msgpack.decode(msgspec.msgpack.encode(event))
    sent = msgspec.msgpack.decode(envelope.body)["trajectory"]["interactions"][0]
    streams = sent["id_planes"]
    columns = np.frombuffer(sent["completion"]["token_ids"], np.uint8).reshape(streams, -1).T
    assert np.pad(columns, ((0, 0), (0, 4 - streams))).copy().view("<u4").ravel().tolist() == [3, 151_935, 7]


def test_an_invalid_message_is_shown_as_it_was_sent():
    body = msgspec.msgpack.encode({"trajectory": {"episode": 7}})
    envelope = Envelope(
        subject=TrajectoryExported.subject, id="i", sender="s", time=0.0, run="r", checksum=0, body=body
    )
    assert fields_of(envelope) == {"trajectory": {"episode": 7}}
