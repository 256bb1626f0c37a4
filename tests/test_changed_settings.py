"""Settings of the chat template that change within a conversation."""

import pytest
from support.samples import LETTERS_TEMPLATE, letters
from test_conversation import Talk, assistant, user

EFFORT = "{% if reasoning_effort %}effort {{ reasoning_effort }}\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "fields", "prefix", "reason"),
    [
        (LETTERS_TEMPLATE, {"template_kwargs": {"reasoning_effort": "high"}}, "call-1", ""),
        (LETTERS_TEMPLATE, {"tools": ({"type": "function"},)}, "call-1", ""),
        (EFFORT + LETTERS_TEMPLATE, {"template_kwargs": {"unused": 1}}, "call-1", ""),
        (
            EFFORT + LETTERS_TEMPLATE,
            {"template_kwargs": {"reasoning_effort": "high"}},
            "",
            "the tools or the template's settings changed",
        ),
        (LETTERS_TEMPLATE + EFFORT, {"template_kwargs": {"reasoning_effort": "high"}}, "call-1", ""),
    ],
)
def test_changed_settings_break_the_prefix_only_where_they_change_its_tokens(template, fields, prefix, reason):
    talk = Talk(letters(template=template))
    talk.call([user("a")], "1")
    prompt = talk.prompt(second := [user("a"), assistant("1"), user("b")], **fields)
    assert (prompt.parent, prompt.prefix, prompt.prefix_break_reason) == ("call-1", prefix, reason)
    assert talk.text(prompt.token_ids) == talk.continuations.chat.render(
        second, fields.get("tools"), **fields.get("template_kwargs", {})
    )
