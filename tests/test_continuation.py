"""The end of a conversation: from a stand-in for its past it is what the whole conversation gives, or only the whole is
asked."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from support.conversation_families import TOOLS, family
from support.conversations import WORDS
from support.samples import LETTERS_TEMPLATE, letters
from test_token_fidelity import FILES

from areal_actors.core.errors import RequestError
from areal_actors.embedded.embedded_model import CHAT_TEMPLATE
from areal_actors.gateway.conversations.continuation import AnsweredConversation, Continuations
from areal_actors.gateway.conversations.template_window import features_of

TEMPLATES = {"embedded": CHAT_TEMPLATE, **{path.stem: path.read_text(encoding="utf-8") for path in FILES}}
SETTINGS = ({}, {}, {"enable_thinking": False}, {"enable_thinking": True}, {"reasoning_effort": "high"})
NUMBERED = LETTERS_TEMPLATE.replace("'\\n' }}", "(';' if loop.index > 5 else '') + '\\n' }}")
"""Writes later messages in another way than the first."""


class Dice(random.Random):
    """Throws messages."""

    def words(self):
        return " ".join(self.choice(WORDS) for _ in range(self.randint(1, 3)))

    def answer(self, tools):
        answer = {"role": "assistant", "content": self.choice((self.words(), self.words(), "")).strip()}
        if self.random() < 0.3:
            answer["reasoning_content"] = self.words().strip()
        if tools and self.random() < 0.5:
            answer["tool_calls"] = [self.tool_call(tools, place) for place in range(self.choice((1, 1, 2)))]
        return answer

    def tool_call(self, tools, place):
        function = {
            "name": self.choice(tools)["function"]["name"],
            "arguments": json.dumps({"expression": self.words()}),
        }
        return {"id": f"abcdefgh{place}", "type": "function", "function": function}

    def next(self, answer):
        messages = [
            {"role": "tool", "tool_call_id": one["id"], "name": one["function"]["name"], "content": self.words()}
            for one in answer.get("tool_calls", ())
        ]
        if not messages or self.random() < 0.2:
            messages += [{"role": "user", "content": self.words()} for _ in range(self.choice((1, 1, 1, 2)))]
            if self.random() < 0.1:
                messages.insert(0, {"role": "system", "content": self.words()})
        return messages

    def conversation(self, tools):
        before = [{"role": "system", "content": self.words()}] if self.random() < 0.5 else []
        before.append({"role": "user", "content": self.words()})
        for _ in range(self.choice((0, 0, 1, 2, 3, 6))):
            answer = self.answer(tools)
            before += [answer, *self.next(answer)]
        return before

    def sampled(self, chat, before, answer, tools, settings):
        """The answer as the template writes it, or a little otherwise."""
        opened = chat.render(before, tools, **settings)
        answered = chat.render([*before, answer], tools, add_generation_prompt=False, **settings)
        text = answered[len(opened) :] if answered.startswith(opened) else answer["content"]
        stops = [chat.decode([token], skip_special=False) for token in chat.stop_ids]
        ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
        text = text[: min(ends)] if ends else text + stops[0]
        return opened, text.replace('": ', '":') if self.random() < 0.2 else text


def compare(template, count):
    """From the window and from the whole: how often they are the same; they never contradict each other."""
    chat = family(template)
    continuations, became = Continuations(chat), Counter()
    for seed in range(count):
        dice = Dice(seed)
        tools, settings = TOOLS[: dice.choice((0, 0, 1, 2))], dice.choice(SETTINGS)
        before, answer = dice.conversation(tools), dice.answer(tools)
        new, features = dice.next(answer), features_of(before) | ({"tools"} if tools else set())
        if not continuations.is_local(features | features_of([answer])):
            became["rendered whole"] += 1
            continue
        try:
            opened, sampled = dice.sampled(chat, before, answer, tools, settings)
            whole = continuations.after(opened, AnsweredConversation(before, answer, sampled, tools, settings), new)
        except RequestError:
            became["refused by the template"] += 1
            continue
        window = continuations.text_after_window(features, answer, sampled, new, settings)
        assert window in (None, whole), f"conversation {seed}"
        became["same" if window is not None else "left to the whole"] += 1
    return became


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_window_renders_as_the_whole_conversation(template):
    became = compare(TEMPLATES[template], 30)
    assert became["same"] or template in {"deepseekv3", "gptoss", "qwen3"}, "the window is of use"


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_window_renders_as_the_whole_conversation_for_hundreds(template):
    compare(TEMPLATES[template], 400)


def test_a_template_whose_end_depends_on_what_came_long_before_is_rendered_whole():
    continuations = Continuations(letters(template=NUMBERED))
    assert not continuations.is_local(frozenset())
    assert Continuations(letters()).is_local(frozenset())
    assert not Continuations(letters()).is_local(frozenset({"a feature that nobody tried"}))


def test_a_stand_in_that_the_template_refuses_leaves_the_question_to_the_whole_conversation():
    refusing = LETTERS_TEMPLATE + "{% if messages[0].content == 'u' %}{{ raise_exception('no') }}{% endif %}"
    continuations = Continuations(letters(template=refusing))
    assert (
        continuations.text_after_window(
            frozenset(), {"role": "assistant", "content": "x"}, "x\n", [{"role": "user", "content": "y"}], {}
        )
        is None
    )


def test_a_template_that_writes_the_date_is_not_held_to_yesterday(monkeypatch):
    day = iter(("1st", "1st", "2nd", "2nd", "2nd", "2nd", "2nd", "2nd"))
    chat = letters(template="{{ messages[0].day }}" + LETTERS_TEMPLATE)
    today = ["1st"]
    render = chat.render
    monkeypatch.setattr(chat, "render", lambda messages, *rest, **more: today[0] + render(messages, *rest, **more))
    continuations, answer, new = (
        Continuations(chat),
        {"role": "assistant", "content": "x"},
        [{"role": "user", "content": "y"}],
    )

    def tail():
        return continuations.text_after_window(frozenset(), answer, "x\n", new, {})

    assert tail() == "u:y\na:"
    today[0] = next(reversed(list(day)))
    assert tail() is None
    assert tail() == "u:y\na:"


# ---------------------------------------------------------------- whole sessions


def user(text):
    return {"role": "user", "content": text}


def test_calls_may_end_with_another_stop_token_than_answers():
    """Functionary and Llama end them so; the model's JSON differs from the template's."""
    template = """{% for message in messages %}<|start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or () %}<call>{"name": "{{ call.function.name }}", \
"arguments": {{ call.function.arguments | tojson }}}</call>{% endfor %}\
{{ '<|eom_id|>' if message.tool_calls else '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}{% if tools %}{% endif %}""".replace("\\\n", "")
    chat = family(template)
    assert not chat.choose_format("auto").error
    call = {
        "id": "callw5o6r",
        "type": "function",
        "function": {"name": "calculator", "arguments": '{"expression":"3"}'},
    }
    before, answer = [{"role": "user", "content": "q"}], {"role": "assistant", "content": "", "tool_calls": [call]}
    sampled = '<call>{"name":"calculator","arguments":{"expression":"3"}}</call><|eom_id|>'
    conversation = AnsweredConversation(before, answer, sampled, TOOLS, {})
    new = [{"role": "tool", "tool_call_id": "callw5o6r", "name": "calculator", "content": "3"}]
    tail = Continuations(chat).after(chat.render(before, TOOLS), conversation, new)
    assert tail == "<|start|>tool\n3<|eot_id|><|start|>assistant\n"


def test_a_template_that_numbers_the_calls_of_a_conversation_is_rendered_whole():
    template = """{% set ids = namespace(all=[]) %}{% for message in messages %}{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls or () -%}
{% if call.id not in ids.all %}{% set ids.all = ids.all + [call.id] %}{% endif -%}
<call>{{ ids.all.index(call.id) }} {{ call.function.name }} {{ call.function.arguments | tojson }}</call>{% endfor %}
{%- if message.role == "tool" %}{% for id in ids.all %}{% if id == message.tool_call_id -%}
<of {{ loop.index }}>{% endif %}{% endfor %}
{%- endif %}
{{- "\\n" }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}{% if tools %}{% endif %}"""
    continuations = Continuations(family(template))
    assert continuations.is_local(frozenset({"tools"}))
    assert not continuations.is_local(frozenset({"tools", "tool_calls"}))
