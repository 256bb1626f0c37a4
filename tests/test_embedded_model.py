"""The model made on the spot: its tokenizer in every reader, and a short warm start that learns."""

import json
import random
from typing import get_args

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from areal_actors.embedded.demonstrations import SKILLS, DemonstrationSource
from areal_actors.embedded.embedded_model import (
    CONTEXT,
    CONVERSATION_VOCABULARY,
    LARGEST_WHOLE_NUMBER,
    TOOL_TOKENS,
    VOCABULARY,
    make_embedded_model,
    train_tokenizer,
    write_tokenizer,
)
from areal_actors.embedded.settings import Skill, WarmStart
from areal_actors.embedded.warm_start import Demonstrations, sequence_of
from areal_actors.tasks.arithmetic import problems, rows
from areal_actors.tokenization.tokenizer import ChatTokenizer

SHORT = WarmStart(steps=30, tail_steps=3)


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """A folder after a short warm start, and the progress that it reported."""
    folder, progress_calls = tmp_path_factory.mktemp("embedded") / "model", []
    make_embedded_model(
        str(folder), SHORT, seed=0, threads=1, progress=lambda *progress: progress_calls.append(progress)
    )
    return folder, progress_calls


def test_a_short_warm_start_learns_and_reports_its_progress(warmed):
    _, progress_calls = warmed
    assert [(done, total) for done, total, _ in progress_calls] == [(done, 33) for done in range(1, 34)]
    losses = [metrics["loss"] for _, _, metrics in progress_calls[:30]]
    assert losses[0] > 6
    assert losses[-1] < 0.4 * losses[0]


def test_the_same_seed_makes_the_same_model(warmed, tmp_path):
    folder, _ = warmed
    for seed, equal in ((0, True), (1, False)):
        make_embedded_model(str(tmp_path / "again"), SHORT, seed=seed, threads=1, progress=lambda *_: None)
        weights = (tmp_path / "again" / "model.safetensors").read_bytes()
        assert (weights == (folder / "model.safetensors").read_bytes()) is equal


def test_a_model_that_is_not_finished_is_not_there(tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_embedded_model(str(tmp_path / "model"), SHORT, seed=0, threads=1, progress=interrupted)
    assert not (tmp_path / "model").exists()


def test_hugging_face_and_the_gateway_read_the_same_tokenizer(warmed):
    folder, _ = warmed
    theirs, ours = AutoTokenizer.from_pretrained(folder), ChatTokenizer.load(folder)
    tool = {
        "type": "function",
        "function": {"name": "add", "description": "adds <two> numbers", "parameters": {"type": "object"}},
    }
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    dialogues = [
        ([{"role": "user", "content": row["question"]}], None) for row in rows("test", 20, seed=0)
    ] + [
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi, ŵörld 12345 🙂"}], None),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}], [tool]),
        (
            [
                {"role": "user", "content": "1+1?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "2", "tool_call_id": "1"},
                {"role": "assistant", "content": "2"},
                {"role": "user", "content": "Sure?"},
            ],
            [tool],
        ),
    ]  # fmt: skip
    for messages, tools in dialogues:
        text = ours.render(messages, tools)
        assert text == theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids, skip_special=False) == text


def test_a_tool_call_and_its_result_are_in_the_prompt(warmed):
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    text = ChatTokenizer.load(warmed[0]).render(
        [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "2"},
        ],
        [{"type": "function", "function": {"name": "add"}}],
    )
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "<tool_response>\n2\n</tool_response>" in text
    assert '{"type": "function", "function": {"name": "add"}}' in text


def test_whole_numbers_are_single_tokens_and_three_digits_at_most_share_one(warmed):
    tokenizer = ChatTokenizer.load(warmed[0])
    assert tokenizer.vocabulary_size <= VOCABULARY
    for number in range(LARGEST_WHOLE_NUMBER + 1):
        assert len(tokenizer.encode(str(number))) == 1, number
    assert len(tokenizer.encode("12345")) >= 2


def test_the_turns_end_is_what_stops_a_completion(warmed):
    folder, _ = warmed
    tokenizer = ChatTokenizer.load(folder)
    assert [tokenizer.decode([stop], skip_special=False) for stop in tokenizer.stop_ids] == ["<|im_end|>"]
    assert AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == tokenizer.stop_ids[0]


def test_a_demonstration_is_the_gateways_prompt_followed_by_the_trained_answer(warmed):
    folder, _ = warmed
    tokenizer = ChatTokenizer.load(folder)
    for shortcut_fraction, worked in ((0.0, True), (1.0, False)):
        for row in Demonstrations(folder, ["answer"], seed=0).take(5, shortcut_fraction):
            prompt, answer = (
                tokenizer.decode(row.token_ids[chosen], skip_special=False)
                for chosen in (~row.loss_mask, row.loss_mask)
            )
            question = prompt.removeprefix("<|im_start|>user\n").removesuffix("<|im_end|>\n<|im_start|>assistant\n")
            assert prompt == tokenizer.render([{"role": "user", "content": question}])
            assert ("<<" in answer) is worked
            assert answer.endswith("<|im_end|>")
            assert "#### " in answer


@pytest.fixture(scope="module")
def conversational(tmp_path_factory):
    """The tokenizer of a model for conversations."""
    folder = tmp_path_factory.mktemp("conversational")
    write_tokenizer(train_tokenizer(["tools", "retry"]), folder)
    return ChatTokenizer.load(folder)


@pytest.mark.parametrize("skill", SKILLS)
def test_a_conversations_row_is_what_the_gateway_sends_and_the_engine_samples_turn_by_turn(conversational, skill):
    source = DemonstrationSource(problems("train", 0), random.Random(0), lambda: False)
    for _ in range(20):
        shown = SKILLS[skill](source)
        row = sequence_of(shown, conversational, group=0)
        ids, mask = [], []
        for index, message in enumerate(shown.messages):
            if message["role"] == "assistant":
                prompt = conversational.render(shown.messages[:index], shown.tools)
                before = conversational.decode(ids, skip_special=False)
                assert prompt.startswith(before)
                suffix = conversational.encode(prompt[len(before) :])
                progress_calls = message["content"] or calls_as_sampled(message["tool_calls"])
                sampled = [*conversational.encode(progress_calls), conversational.stop_ids[0]]
                ids += [*suffix, *sampled]
                mask += [False] * len(suffix) + [index not in shown.mistakes] * len(sampled)
        assert row.token_ids.tolist() == ids
        assert row.loss_mask.tolist() == mask


def calls_as_sampled(calls):
    """Output of a model of the Qwen family."""
    written = [
        f'{{"name": "{call["function"]["name"]}", "arguments": {call["function"]["arguments"]}}}' for call in calls
    ]
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in written)


SAMPLED = [
    '<tool_call>\n{"name": "calculate", "arguments": {"expression": "(7-2)*3"}}\n</tool_call>',
    (
        '<tool_call>\n{"name": "add", "arguments": {"a": 7, "b": -2.5}}\n</tool_call>\n<tool_call>\n{"name": "add",'
        ' "arguments": {}}\n</tool_call>'
    ),
    'Let me see.\n<tool_call>\n{"name": "calculate", "arguments": {"expression": "ä \\"<1>\\""}}\n</tool_call>',
    "#### 12",
]


@pytest.mark.parametrize("sampled", SAMPLED)
@pytest.mark.parametrize("read", [str, json.loads], ids=["text", "object"])
def test_what_was_sampled_is_rendered_again_as_it_was_sampled(conversational, sampled, read):
    tools = [schema for skill in ("tools", "functions") for schema in plain_tools(skill)]
    answer = conversational.format.parse(sampled, tools)
    assert not answer.tool_call_error
    assert len(answer.tool_calls) == sampled.count("<tool_call>")
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": read(call.arguments)}}
        for call in answer.tool_calls
    ]
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    progress_calls = [*asked, {"role": "assistant", "content": answer.text or None, "tool_calls": calls}]
    responses = [{"role": "tool", "content": "12"} for _ in calls]
    prompt = conversational.render(asked, tools)
    longer = conversational.render([*progress_calls, *responses, {"role": "user", "content": "Sure?"}], tools)
    assert longer.startswith(prompt + sampled + "<|im_end|>\n<|im_start|>user\n")
    if calls:
        assert (
            "\n".join(["<tool_response>\n12\n</tool_response>"] * len(calls)) + "<|im_end|>\n<|im_start|>user\nSure?"
            in longer
        )


def plain_tools(skill):
    """The tools of a skill, in their usual words."""
    source = DemonstrationSource(problems("train", 0), random.Random(1), lambda: False)
    return max((SKILLS[skill](source).tools for _ in range(20)), key=len)


def test_the_marks_of_tools_are_single_tokens_that_stay_in_the_text(conversational):
    for mark in TOOL_TOKENS:
        (token,) = conversational.encode(mark)
        assert conversational.decode([token]) == mark
    assert conversational.vocabulary_size <= CONVERSATION_VOCABULARY + len(TOOL_TOKENS)
    assert all(len(conversational.encode(str(number))) == 1 for number in range(LARGEST_WHOLE_NUMBER + 1))


def test_two_system_messages_and_no_tools_are_rendered_in_their_places(conversational):
    text = conversational.render(
        [
            {"role": "system", "content": "One."},
            {"role": "system", "content": "Two."},
            {"role": "user", "content": "Hi"},
        ]
    )
    assert text.startswith(
        "<|im_start|>system\nOne.<|im_end|>\n<|im_start|>system\nTwo.<|im_end|>\n<|im_start|>user\nHi"
    )
    assert "<tools>" not in text


def test_a_conversational_model_learns_and_samples(tmp_path):
    progress_calls = []
    short = WarmStart(skills=("tools", "retry"), steps=12, tail_steps=1)
    make_embedded_model(
        str(tmp_path / "model"), short, seed=0, threads=1, progress=lambda *progress: progress_calls.append(progress)
    )
    losses = [metrics["loss"] for _, _, metrics in progress_calls]
    assert losses[-1] < 0.8 * losses[0]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").config.max_position_embeddings == CONTEXT


def test_every_skill_of_the_recipe_can_be_shown():
    assert set(get_args(Skill)) == set(SKILLS)
