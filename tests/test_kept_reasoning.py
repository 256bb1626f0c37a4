"""`gateway.chat_template = "keep-reasoning"`: prompts extend answers whose reasoning the chat template drops."""

import pytest
from support.conversation_families import family
from support.conversations import converse

from areal_actors.core.errors import SetupError
from areal_actors.core.values import SamplingParams, TokenColumns
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion_check import PublishedVersions
from areal_actors.gateway.conversations.continuation import Continuations
from areal_actors.gateway.conversations.conversation import prompt_for
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.settings import KEEP_REASONING, GatewaySettings
from areal_actors.gateway.template_settings import apply_template_settings
from areal_actors.messages import Generated, ModelRequest

DROPPING = """{%- set last = namespace(user=0) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- if tools %}<|im_start|>system
{{ tools | tojson }} Calls are between <tool_call></tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content and loop.index0 > last.user %}<think>
{{ message.reasoning_content.strip() }}
</think>

{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or () %}
{{- '\\n' if message.content or not loop.first else '' }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Drops reasoning before the last user message, as Qwen3's template does."""
MOVING = DROPPING.replace("{{ tools | tojson }}", "{{ messages[-1].content }} {{ tools | tojson }}").replace(
    "{%- for message in messages %}<|im_start|>{{",
    "{%- for message in messages %}{{ messages | length }}<|im_start|>{{",
)
"""Writes the number of messages before each one."""
ENDING = DROPPING.replace(
    "{%- endfor %}<|im_end|>", "{%- endfor %}{{ '<|call|>' if message.tool_calls else '<|im_end|>' }}"
)
"""Ends calls with another token than answers."""
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "q"}


class Session:
    """Calls of one conversation, with a model that writes given texts."""

    def __init__(self, setting, template=DROPPING):
        self.chat = family(template)
        self.continuations = Continuations(
            self.chat, apply_template_settings(self.chat, GatewaySettings(chat_template=setting)).kept
        )
        self.turns = {}

    def call(self, messages, text, tools=(), stop="<|im_end|>"):
        """The prompt, and the messages with the answer, as a client sends them back without reasoning."""
        prompt = prompt_for(
            SessionTurns(self.turns.values()),
            ModelRequest(session="s", messages=tuple(messages), tools=tools),
            self.continuations,
        )
        name = f"call-{len(self.turns)}"
        choice = Choice(
            name,
            0,
            prompt,
            SamplingParams(),
            self.chat,
            tools,
            stream=False,
            logprobs=False,
            published=PublishedVersions(0),
        )
        ids = self.chat.encode(f"{text}{stop}")
        choice.add_tokens(
            Generated(columns=TokenColumns.of(ids, [-0.5] * len(ids), [0] * len(ids)), finish_reason="stop")
        )
        self.turns[name] = choice.finish(last=True)[1]
        answer = {key: value for key, value in self.turns[name].answer.items() if key != "reasoning_content"}
        return (
            self.chat.decode(memoryview(prompt.token_ids).cast("I").tolist(), skip_special=False),
            prompt,
            [*messages, answer],
        )


THOUGHT = "<think>\nTwo and two.\n</think>\n\nFour."


def test_a_prompt_keeps_the_reasoning_that_the_template_drops():
    session = Session(KEEP_REASONING)
    _, _, messages = session.call([USER], THOUGHT)
    text, prompt, messages = session.call([*messages, USER], THOUGHT)
    assert (prompt.prefix, prompt.prefix_break_reason) == ("call-0", "")
    question, opening = "<|im_start|>user\nq<|im_end|>\n", "<|im_start|>assistant\n"
    assert text == f"{question}{opening}{THOUGHT}<|im_end|>\n{question}{opening}"
    _, prompt, _ = session.call([*messages, USER], THOUGHT)
    assert prompt.prefix == "call-1"


def test_without_the_setting_the_same_prompt_splits():
    session = Session("")
    _, _, messages = session.call([USER], THOUGHT)
    text, prompt, _ = session.call([*messages, USER], THOUGHT)
    assert (prompt.prefix, prompt.prefix_break_reason) == ("", "the chat template drops earlier reasoning")
    assert "Two and two." not in text


def test_a_call_with_reasoning_is_extended_by_its_result_and_by_the_next_question():
    session = Session(KEEP_REASONING)
    call = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "look_up", "arguments": {"query":"a b"}}\n</tool_call>'
    _, _, messages = session.call([USER], call, (TOOL,))
    result = {"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": "c"}
    text, prompt, messages = session.call([*messages, result, USER], "Four.", (TOOL,))
    assert prompt.prefix == "call-0"
    assert text.endswith(
        f"{call}<|im_end|>\n<|im_start|>tool\nc<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_call_that_ends_with_another_stop_token_than_answers_is_extended():
    session = Session(KEEP_REASONING, ENDING)
    call = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "look_up", "arguments": {"query":"a b"}}\n</tool_call>'
    _, _, messages = session.call([USER], call, (TOOL,), "<|call|>")
    result = {"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": "c"}
    text, prompt, _ = session.call([*messages, result, USER], "Four.", (TOOL,))
    assert prompt.prefix == "call-0"
    assert text.endswith(
        f"{call}<|call|>\n<|im_start|>tool\nc<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    )


def test_changed_history_still_splits_with_its_reason():
    session = Session(KEEP_REASONING)
    _, _, messages = session.call([USER], THOUGHT)
    _, prompt, _ = session.call([{"role": "system", "content": "s"}, *messages, USER], THOUGHT)
    assert prompt.prefix == ""


def test_random_conversations_extend_and_what_follows_an_answer_is_what_the_template_writes():
    dropped, kept = converse(DROPPING, 30), converse(DROPPING, 30, keep_reasoning=True)
    split = [sum(number for what, number in became.items() if what.startswith("split")) for became in (dropped, kept)]
    assert split[0] > 0.1 * (dropped["extended"] + split[0])
    assert split[1] <= 0.03 * (kept["extended"] + split[1])


def test_a_template_that_rewrites_more_than_reasoning_is_refused():
    with pytest.raises(SetupError, match="rewrites more than reasoning in earlier messages"):
        apply_template_settings(family(MOVING), GatewaySettings(chat_template=KEEP_REASONING))


def test_a_template_without_reasoning_is_refused():
    plain = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    with pytest.raises(SetupError, match="has no reasoning"):
        apply_template_settings(family(plain), GatewaySettings(chat_template=KEEP_REASONING))
