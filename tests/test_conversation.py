from __future__ import annotations

import msgspec
import pytest
from support.samples import LETTERS_TEMPLATE, TOOLS_TEMPLATE, columns, letters

from areal_actors.core.errors import RequestError
from areal_actors.core.values import pack_ids, unpack_ids
from areal_actors.gateway.conversations.continuation import Continuations
from areal_actors.gateway.conversations.conversation import prompt_for, with_history
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.conversations.template_window import renders_names
from areal_actors.gateway.conversations.turns import path_to, record_turn, token_ids_of
from areal_actors.messages import ModelRequest


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def asked(messages, **fields):
    return ModelRequest(session="s", messages=tuple(messages), **fields)


class Talk:
    """A session's turns, and calls that continue them."""

    def __init__(self, chat=None):
        self.chat = chat or letters()
        self.continuations = Continuations(self.chat)
        self.turns = {}

    def prompt(self, messages, **fields):
        request = with_history(self.turns, asked(messages, **fields))
        return prompt_for(SessionTurns(self.turns.values()), request, self.continuations)

    def call(self, messages, answer, *, version=0, sampled=None, finish_reason="stop", **fields):
        """One more completed call; its completion ends with the end of the message."""
        prompt = self.prompt(messages, **fields)
        message = answer if isinstance(answer, dict) else assistant(answer)
        made = columns(sampled or (message["content"] or "") + "\n", version)
        turn = record_turn(f"call-{len(self.turns) + 1}", prompt, made, finish_reason, message)
        self.turns[turn.interaction.id] = turn
        return turn

    def text(self, ids):
        return self.chat.decode(unpack_ids(ids), skip_special=False)

    def ids(self, name):
        return token_ids_of(path_to(name, self.turns))


def test_a_first_call_is_a_root_whose_suffix_is_everything():
    talk = Talk()
    prompt = talk.prompt([user("hi")])
    assert (prompt.parent, prompt.prefix_break_reason, prompt.token_ids, prompt.cached_tokens) == (
        "",
        "",
        prompt.suffix_ids,
        0,
    )
    assert talk.text(prompt.token_ids) == "u:hi\na:"


def test_a_second_call_begins_with_the_exact_tokens_of_the_first():
    talk = Talk()
    talk.call([user("hi")], "yes")
    second = talk.prompt([user("hi"), assistant("yes"), user("why")])
    assert second.parent == "call-1"
    assert second.token_ids == talk.ids("call-1") + second.suffix_ids
    assert talk.text(second.suffix_ids) == "u:why\na:"
    assert second.cached_tokens == len(talk.ids("call-1")) // 4


def test_the_model_s_own_spelling_is_kept_where_the_tokenizer_would_choose_another():
    talk = Talk(letters("ab"))
    talk.call([user("hi")], "ab")
    messages = [user("hi"), assistant("ab"), user("ab")]
    second = talk.prompt(messages)
    assert unpack_ids(second.token_ids) != talk.chat.encode(talk.chat.render(messages))
    assert 300 not in unpack_ids(talk.ids("call-1"))
    assert 300 in unpack_ids(second.suffix_ids)
    assert talk.text(second.token_ids) == talk.chat.render(messages)


def test_the_parent_is_the_longest_call_that_the_messages_continue():
    talk = Talk()
    messages = [user("a")]
    talk.call(messages, "1")
    messages += [assistant("1"), user("b")]
    talk.call(messages, "2")
    talk.call([user("else")], "3")
    assert talk.prompt([*messages, assistant("2"), user("c")]).parent == "call-2"
    assert talk.prompt([user("a"), assistant("1"), user("c")]).parent == "call-1"
    assert talk.prompt([user("a"), assistant("not 1"), user("c")]).parent == ""
    assert talk.prompt([user("else"), assistant("3"), user("c")]).parent == "call-3"


def test_the_same_messages_asked_again_are_a_root_of_their_own():
    talk = Talk()
    talk.call([user("a")], "1")
    assert talk.prompt([user("a")]).parent == ""


def test_of_two_calls_with_the_same_answer_the_later_is_continued():
    talk = Talk()
    talk.call([user("a")], "1")
    talk.call([user("a")], "1")
    assert talk.prompt([user("a"), assistant("1"), user("b")]).parent == "call-2"


@pytest.mark.parametrize(
    ("answer", "sent_back"),
    [
        ({"content": "yes"}, {"content": [{"type": "text", "text": "y"}, {"type": "text", "text": "es"}]}),
        ({"content": "yes"}, {"content": "yes", "refusal": None, "tool_calls": []}),
        ({"content": "yes\n"}, {"content": "yes"}),
        ({"content": "yes", "reasoning_content": "hm"}, {"content": "yes"}),
        ({"content": ""}, {"content": None}),
        ({"content": ""}, {}),
        (
            {
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1, "b": [2]}'}}],
            },
            {"content": "", "tool_calls": [{"id": "2", "function": {"arguments": '{"b":[2],"a":1}', "name": "f"}}]},
        ),
    ],
)
def test_parents_are_found_by_value(answer, sent_back):
    blind = letters(template="{{ 'x' * (messages | length) }}")
    talk = Talk(blind)
    talk.call([user("a")], {"role": "assistant", **answer}, sampled="x")
    assert talk.prompt([user("a"), {"role": "assistant", **sent_back}, user("b")]).parent == "call-1"


def test_earlier_messages_too_are_compared_by_value():
    talk = Talk()
    talk.call([user("a")], "1")
    talk.call([user("a"), assistant("1"), user("b")], "2")
    parts = [{"type": "text", "text": "a"}]
    prompt = talk.prompt([user(parts), {**assistant("1"), "refusal": None}, user("b"), assistant("2"), user("c")])
    assert prompt.parent == "call-2"


NAMING_TEMPLATE = LETTERS_TEMPLATE.replace("':'", "(message.name or '') + ':'")


@pytest.mark.parametrize(
    ("template", "other"), [(LETTERS_TEMPLATE, {"content": "no"}), (NAMING_TEMPLATE, {"content": "yes", "name": "bob"})]
)
def test_what_the_model_would_see_differently_is_no_parent(template, other):
    talk = Talk(letters(template=template))
    talk.call([user("a")], "yes")
    assert talk.prompt([user("a"), {"role": "assistant", **other}, user("b")]).parent == ""


def test_a_name_that_the_template_does_not_show_is_no_difference():
    """Semantic Kernel adds the agent's name to each streamed answer."""
    talk = Talk()
    talk.call([user("a")], "yes")
    second = [user("a"), {**assistant("yes"), "name": "bob"}, user("b")]
    prompt = talk.call(second, "no").prompt
    assert (prompt.parent, prompt.prefix) == ("call-1", "call-1")
    prompt = talk.prompt([*second, {**assistant("no"), "name": "bob"}, user("c")])
    assert (prompt.parent, prompt.prefix) == ("call-2", "call-2")


@pytest.mark.parametrize(
    ("template", "shows"),
    [
        (TOOLS_TEMPLATE, False),
        (NAMING_TEMPLATE, True),
        (TOOLS_TEMPLATE.replace("<tool_call>", "<tool_call>{{ message.name or '' }}"), True),
        ("{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}", False),
    ],
    ids=["nowhere", "everywhere", "beside calls", "refuses tools"],
)
def test_a_template_is_tested_for_names_at_load(template, shows):
    assert renders_names(letters(template=template)) == shows


def test_where_a_template_rewrites_history_the_call_has_a_parent_without_a_prefix_and_a_reason():
    """It shows only the last two messages."""
    talk = Talk(letters(template=LETTERS_TEMPLATE.replace("in messages", "in messages[-2:]")))
    talk.call([user("a")], "1")
    prompt = talk.prompt([user("a"), assistant("1"), user("b")])
    assert (prompt.parent, prompt.prefix, prompt.prefix_break_reason) == (
        "call-1",
        "",
        "the chat template rewrites earlier messages",
    )
    assert prompt.token_ids == prompt.suffix_ids
    assert talk.text(prompt.token_ids) == "a:1\nu:b\na:"


@pytest.mark.parametrize(
    ("messages", "fields", "parent", "reason"),
    [
        ([user("A"), assistant("1"), user("b")], {}, "", "message 0 (user) is not what it was in the call before"),
        ([user("a"), assistant("2"), user("b")], {}, "", "message 1 (assistant) is not what it was in the call before"),
        ([user("other"), user("b")], {}, "", ""),
    ],
)
def test_a_call_that_cannot_extend_tokens_has_a_split_reason(messages, fields, parent, reason):
    talk = Talk()
    talk.call([user("a")], "1")
    prompt = talk.prompt(messages, **fields)
    assert (prompt.parent, prompt.prefix, prompt.prefix_break_reason) == (parent, "", reason)


def test_an_answer_cut_by_length_is_continued_with_the_end_of_turn_that_it_lacks():
    talk = Talk()
    talk.call([user("a")], "12", sampled="12", finish_reason="length")
    second = talk.prompt([user("a"), assistant("12"), user("b")])
    assert second.parent == "call-1"
    assert talk.text(second.suffix_ids) == "\nu:b\na:"


def test_a_client_may_name_the_call_that_it_continues_instead_of_sending_it_again():
    talk = Talk()
    talk.call([user("a")], "1")
    named = talk.prompt([user("b")], continues="call-1")
    assert named.parent_by_id
    assert msgspec.structs.replace(named, parent_by_id=False) == talk.prompt([user("a"), assistant("1"), user("b")])
    with pytest.raises(RequestError, match="no earlier call 'call-9' in this session; it has call-1"):
        talk.prompt([user("b")], continues="call-9")


def test_instructions_are_not_carried_over_to_a_call_that_names_another():
    talk = Talk()
    system = {"role": "system", "content": "s"}
    talk.call([system, user("a")], "1")
    assert talk.prompt([system, user("b")], continues="call-1").prefix == "call-1"
    without = talk.prompt([user("b")], continues="call-1")
    assert (without.parent, without.prefix) == ("call-1", "")


def test_system_message_and_tools_may_be_inherited_from_the_call_that_is_named():
    talk = Talk()
    tools = ({"type": "function", "function": {"name": "f"}},)
    talk.call([{"role": "system", "content": "s"}, user("a")], "1", tools=tools)
    assert talk.prompt([user("b")], continues="call-1", inherits=True).prefix == "call-1"
    without = talk.prompt([user("b")], continues="call-1")
    assert (without.parent, without.prefix) == ("call-1", "")


def test_a_prompt_without_messages_continues_the_tokens_that_it_begins_with():
    talk = Talk()
    talk.call([], "1", prompt="once")
    assert talk.prompt([], prompt="once1\n upon").parent == "call-1"
    assert talk.text(talk.prompt([], prompt="once1\n upon").suffix_ids) == " upon"
    assert talk.prompt([], prompt_ids=talk.ids("call-1") + pack_ids([65])).suffix_ids == pack_ids([65])
    assert talk.prompt([], prompt="once2").parent == ""


def test_long_conversations_are_rendered_whole_only_now_and_then():
    talk = Talk()
    rendered = []
    render = talk.chat.render
    talk.chat.render = lambda messages, *rest, **options: (
        rendered.append(len(messages)) or render(messages, *rest, **options)
    )
    messages = [user("q")]
    for number in range(60):
        talk.call(messages, f"a{number}")
        messages += [assistant(f"a{number}"), user(f"q{number}")]
    assert talk.turns["call-60"].interaction.parent == "call-59"
    assert talk.text(talk.ids("call-60")) == render(messages[:-1], add_generation_prompt=False)
    assert [count for count in rendered if count > 5] == [21, 21, 85, 85]


def test_a_call_costs_its_own_tokens_and_not_those_of_its_parents():
    talk, messages = Talk(), [user("a" * 1000)]
    for number in range(5):
        talk.call(list(messages), f"{number}")
        messages += [assistant(f"{number}"), user("go on")]
    sizes = [len(msgspec.msgpack.encode(turn.interaction)) for turn in talk.turns.values()]
    assert max(sizes[1:]) < 300 < sizes[0]
