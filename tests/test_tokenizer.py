"""Our tokenizer equals that of transformers, without loading it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from areal_actors.core.errors import RequestError, SetupError
from areal_actors.tokenization.tokenizer import ChatTokenizer, TextStream

TEMPLATE = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set state = namespace(users=0) %}
{%- for message in messages %}
    {%- if message.role == 'forbidden' %}{{- raise_exception('no such role: ' + message.role) }}{%- endif %}
    {%- if message.role == 'system' and tools %}{%- continue %}{%- endif %}
    {%- if message.role == 'user' %}{%- set state.users = state.users + 1 %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}
    {%- if message.role == 'assistant' %}
    {% generation %}
    {{- message.content or '' }}
    {% endgeneration %}
    {%- else %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' }}{{- call.function.arguments | tojson(indent=2) }}{{- '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>' + (eos_token if loop.last and style == 'closed' else '') + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
{{- state.users }}
"""
TEXTS = [
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.",
    "<|im_start|>user\nHallo Wörld 🙂<|im_end|>\n",
    "  spaces\n\n\ttabs ",
    "日本語 e\u0301 \u200d",
    "",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "a < b & 'c' ü",
            "parameters": {"type": "object", "properties": {"x": {"type": "number"}}},
        },
    }
]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is 2 + 2?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<b>&amp;"},
        {"role": "assistant", "content": "ok", "reasoning": "hm"},
    ],
    [
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": {"x": 1, "y": "ü"}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> ChatTokenizer:
    return ChatTokenizer.load(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_are_those_of_transformers(ours: ChatTokenizer, theirs: Any, text: str) -> None:
    ids = ours.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    for skip_special in (True, False):
        assert ours.decode(ids, skip_special) == theirs.decode(ids, skip_special_tokens=skip_special)
    assert ours.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_prompts_are_those_of_transformers(
    ours: ChatTokenizer, theirs: Any, messages: Any, tools: Any, *, add_generation_prompt: bool
) -> None:
    options = {"add_generation_prompt": add_generation_prompt, "style": "closed"}
    assert ours.render(messages, tools, **options) == theirs.apply_chat_template(
        messages, tools=tools, tokenize=False, **options
    )


def test_a_template_that_refuses_is_the_callers_error_in_its_own_words(ours: ChatTokenizer) -> None:
    with pytest.raises(RequestError, match="no such role: forbidden") as refused:
        ours.render([{"role": "forbidden", "content": ""}], None)
    assert refused.value.field == "messages"


def test_a_template_cannot_leave_its_sandbox(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestError, match="unsafe"):
        ChatTokenizer.load(tmp_path).render([], None)


def test_stop_ids_come_from_every_place_that_names_them(ours: ChatTokenizer) -> None:
    assert ours.stop_ids == (0, 2)
    assert ours.vocabulary_size == ours.tokenizer.get_vocab_size()


def test_the_template_may_stand_in_the_configuration(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    templates = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ eos_token }}{{ messages[0].content }}"},
    ]
    for template in (templates, templates[1]["template"]):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"eos_token": "<|im_end|>", "chat_template": template})
        )
        assert ChatTokenizer.load(tmp_path).render([{"role": "user", "content": "hi"}], None) == "<|im_end|>hi"


def test_a_missing_or_broken_file_is_an_error_with_a_remedy(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(SetupError, match=r"no tokenizer\.json"):
        ChatTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SetupError, match="cannot be loaded"):
        ChatTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(SetupError, match="no chat template"):
        ChatTokenizer.load(tmp_path).render([], None)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(SetupError, match="cannot be loaded"):
        ChatTokenizer.load(tmp_path)


@pytest.mark.parametrize("text", TEXTS)
def test_text_released_token_by_token_adds_up_and_never_breaks_a_character(ours: ChatTokenizer, text: str) -> None:
    stream = TextStream(ours)
    parts = [stream.push([token_id]) for token_id in ours.encode(text)]
    assert "".join([*parts, stream.finish()]) == ours.decode(ours.encode(text)) == stream.released
    assert not any("\ufffd" in part for part in parts)


def test_an_incomplete_character_comes_at_the_end_as_a_replacement(ours: ChatTokenizer) -> None:
    ids = ours.tokenizer.encode("ab🦀", add_special_tokens=False).ids
    assert len(ids) > 4
    stream = TextStream(ours)
    assert stream.push(ids[:-1]) == "ab"
    assert stream.finish() == "\ufffd"


def test_a_stop_string_is_held_back_until_it_is_certain_and_then_cut(ours: ChatTokenizer) -> None:
    stream = TextStream(ours, ("###", "\nQ:"))
    released = [stream.push(ours.encode(part)) for part in ("one #", "# two\n", "Q", " three ##", "# four", " five")]
    assert released == ["one ", "## two", "", "\nQ three ", "", ""]
    assert stream.matched == "###"
    assert stream.released == "one ## two\nQ three "
    assert stream.finish() == ""


def test_what_only_looked_like_a_stop_string_is_released_at_the_end(ours: ChatTokenizer) -> None:
    stream = TextStream(ours, ("END",))
    assert stream.push(ours.encode("the EN")) == "the "
    assert stream.finish() == "EN"
    assert stream.matched == ""


def test_loading_a_tokenizer_loads_neither_torch_nor_transformers(folder: Path) -> None:
    program = """import sys
from areal_actors.tokenization.tokenizer import ChatTokenizer
ChatTokenizer.load(sys.argv[1])
print(sorted({"torch", "transformers"} & set(sys.modules)))"""
    finished = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert finished.stdout.strip() == "[]"
