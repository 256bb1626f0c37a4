"""The parent of a call is found by name, by the ids of tool calls or by value, whatever its tokens extend."""

import json

import pytest
from support.samples import LETTERS_TEMPLATE, columns, letters

from areal_actors.core.values import unpack_ids
from areal_actors.gateway.conversations.continuation import Continuations
from areal_actors.gateway.conversations.conversation import prompt_for
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.conversations.turns import CANCELLED, record_turn
from areal_actors.messages import ModelRequest

BLIND = "{{ 'x' * (messages | length) }}"
"""A template that renders no content, so that only messages decide."""


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def edits(identifier, **arguments):
    """An answer that makes one tool call."""
    call = {"id": identifier, "type": "function", "function": {"name": "edit", "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result(identifier):
    return {"role": "tool", "tool_call_id": identifier, "content": "done"}


class Session:
    def __init__(self, template=BLIND):
        self.chat = letters(template=template)
        self.continuations = Continuations(self.chat)
        self.turns = {}

    def prompt(self, *messages, **fields):
        return prompt_for(
            SessionTurns(self.turns.values()),
            ModelRequest(session="s", messages=messages, **fields),
            self.continuations,
        )

    def call(self, *messages, answer, sampled="x", finish_reason="stop", streamed=False, **fields):
        prompt = self.prompt(*messages, **fields)
        turn = record_turn(f"c{len(self.turns)}", prompt, columns(sampled), finish_reason, answer, streamed=streamed)
        self.turns[turn.interaction.id] = turn
        return turn.interaction


@pytest.fixture
def edited():
    session = Session()
    session.call(user("a"), answer=edits("id0", file="f", old="1", new={"text": "2"}))
    return session


@pytest.mark.parametrize(
    "sent",
    [
        {"new": {"text": "2"}, "old": "1", "file": "f"},
        {"file": "f", "old": "1", "new": {"text": "2"}, "replace_all": False},
        {"file": "f", "old": "1", "new": {"text": "2", "encoding": "utf-8"}},
    ],
)
def test_a_tool_call_sent_back_with_normalised_arguments_under_its_id_keeps_parent_and_tokens(edited, sent):
    prompt = edited.prompt(user("a"), edits("id0", **sent), result("id0"))
    assert (prompt.parent, prompt.prefix, prompt.prefix_break_reason) == ("c0", "c0", "")


def test_calls_after_one_with_normalised_arguments_are_found_by_value(edited):
    messages = [user("a"), edits("id0", file="f", old="1", new={"text": "2"}, replace_all=False), result("id0")]
    edited.call(*messages, answer=assistant("ok"))
    assert edited.prompt(*messages, assistant("ok"), user("more")).prefix == "c1"


def test_defaults_within_lists_are_normalised_arguments_too():
    session = Session()
    session.call(user("a"), answer=edits("id0", edits=[{"old": "1"}, {"old": "2"}]))
    prompt = session.prompt(
        user("a"), edits("id0", edits=[{"old": "1", "all": False}, {"old": "2", "all": False}]), result("id0")
    )
    assert prompt.prefix == "c0"
    assert session.prompt(user("a"), edits("id0", edits=[{"old": "1"}]), result("id0")).prefix == ""


def test_a_tool_call_whose_values_the_client_changed_keeps_its_parent_but_not_its_tokens(edited):
    prompt = edited.prompt(user("a"), edits("id0", file="g", old="1", new={"text": "2"}), result("id0"))
    assert (prompt.parent, prompt.prefix) == ("c0", "")
    assert prompt.prefix_break_reason == "message 1 (assistant) is not what it was in the call before"


def test_under_another_id_more_arguments_are_another_call(edited):
    sent = edits("other", file="f", old="1", new={"text": "2"}, replace_all=False)
    assert edited.prompt(user("a"), sent, result("other")).parent == ""


def test_an_id_names_the_parent_also_where_the_history_before_it_was_rewritten(edited):
    prompt = edited.prompt(user("a summary"), edits("id0", file="f", old="1", new={"text": "2"}), result("id0"))
    assert (prompt.parent, prompt.prefix) == ("c0", "")
    assert (
        prompt.prefix_break_reason
        == "the messages before an answer, which its tool call's id names, are not what they were"
    )


def test_of_an_id_and_a_value_the_deeper_one_names_the_parent(edited):
    messages = [user("a"), edits("id0", file="f", old="1", new={"text": "2"}), result("id0")]
    edited.call(*messages, answer=assistant("first"))
    edited.call(*messages, assistant("first"), user("b"), answer=edits("id1", x=1))
    assert edited.prompt(*messages, assistant("first"), user("c")).parent == "c1"
    assert edited.prompt(*messages, assistant("unknown"), user("c")).parent == "c0"
    assert edited.prompt(*messages, assistant("first"), user("b"), edits("id1", x=1, y=2), result("id1")).prefix == "c2"


def test_changed_tools_that_the_template_does_not_show_break_neither_the_tokens_nor_the_lineage():
    session = Session()
    session.call(user("a"), answer=assistant("1"))
    prompt = session.prompt(
        user("a"), assistant("1"), user("b"), tools=({"type": "function", "function": {"name": "f"}},)
    )
    assert (prompt.parent, prompt.prefix, prompt.prefix_break_reason) == ("c0", "c0", "")


def left(sampled, finish_reason=CANCELLED):
    """A session whose client left the stream of its first call."""
    session = Session(LETTERS_TEMPLATE)
    session.call(user("a"), answer=assistant(sampled), sampled=sampled, finish_reason=finish_reason, streamed=True)
    return session


def test_a_stream_that_the_client_left_is_continued_with_the_tokens_that_were_sent():
    session = left("one two")
    prompt = session.prompt(user("a"), assistant("one two"), user("b"))
    assert (prompt.parent, prompt.prefix) == ("c0", "c0")
    assert session.chat.decode(unpack_ids(prompt.suffix_ids), skip_special=False) == "\nu:b\na:"


@pytest.mark.parametrize("finish_reason", [CANCELLED, "stop"])
def test_of_a_stream_that_was_left_a_client_may_keep_only_the_beginning(finish_reason):
    """The engine may have been faster than the client that left."""
    session = left("one two", finish_reason)
    prompt = session.prompt(user("a"), assistant("one"), user("b"))
    assert (prompt.parent, prompt.prefix) == ("c0", "")
    assert prompt.prefix_break_reason == "the client kept only the beginning of an answer that was streamed"
    assert session.prompt(user("a"), assistant("two"), user("b")).parent == ""


def test_the_beginning_of_an_answer_that_was_not_streamed_is_another_answer():
    session = Session()
    session.call(user("a"), answer=assistant("one two"))
    assert session.prompt(user("a"), assistant("one"), user("b")).parent == ""
