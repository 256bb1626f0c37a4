"""Messages of completed calls, as a session keeps them."""

import json
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_actors.gateway.conversations.kept_messages import PLAIN_BYTES, pack_json, unpack_json

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(TEXT, VALUES, max_size=4), max_size=4), st.integers(0, 60))
def test_messages_are_what_was_packed(messages, more):
    messages = [*messages, {"role": "user", "content": "text " * more}]
    assert unpack_json(pack_json(messages)) == messages


@pytest.mark.parametrize("length", [0, PLAIN_BYTES - 50, PLAIN_BYTES, 10 * PLAIN_BYTES, 1 << 20])
def test_messages_of_any_length_are_what_was_packed_in_any_thread(length):
    messages = [{"role": "user", "content": "x" * length}]
    packed = pack_json(messages)
    with ThreadPoolExecutor(4) as threads:
        assert all(one == messages for one in threads.map(lambda _: unpack_json(packed), range(16)))
        assert len(set(threads.map(lambda _: pack_json(messages), range(16)))) == 1


def test_nothing_is_no_message():
    assert unpack_json(b"") == []


def test_long_messages_take_less_memory_than_their_json():
    messages = [{"role": "user", "content": " ".join(map(str, range(0, 4000, 7)))}]
    packed, text = list[bytes](), json.dumps(messages)
    pack_json(messages)  # the library's contexts, once
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    packed += [pack_json(messages) for _ in range(50)]
    each = (tracemalloc.get_traced_memory()[0] - before) / 50
    tracemalloc.stop()
    assert each < 0.75 * len(text)
    assert each < 1.2 * sys.getsizeof(packed[0])
