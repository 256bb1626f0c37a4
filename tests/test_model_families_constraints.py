"""Forced tool calls of model families whose syntax is learned from the chat template."""

import pytest
from support.answer_samples import SEARCH, WEATHER, read_by
from support.family_templates import ONE_CALL, TEMPLATES, form_of
from test_tool_parsers_constraints import allows

BEFORE_CALLS = {
    "response_element": "<|open|>response<|sep|><|close|>response<|sep|>",
    "channel": " to=weather<|message|>",
}
"""Delimiters that stand before the calls of an answer without text."""


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_forced_completion_is_a_call_of_the_family(family):
    form, _ = form_of(family)
    constraint = form.constraint([WEATHER, SEARCH], parallel=False)
    call = ONE_CALL[family]
    if family == "command_r7b":
        call = call.replace('{"tool_call_id": "0", ', "{").replace("\n", "").replace("    ", "")
    if family == "apriel":
        call = call.replace(', "id": "callP1a2r"', "")
    call = BEFORE_CALLS.get(family, "") + call
    assert allows(constraint, call)
    assert not allows(constraint, call.replace("weather", "other"))
    assert not allows(constraint, call + "Hello")
    assert [one.name for one in read_by(form, call).tool_calls] == ["weather"]
