import os
from pathlib import Path

import numpy as np
import pytest
from support.conversation_families import family
from support.samples import letters

from areal_actors.core.errors import SetupError
from areal_actors.embedded.embedded_model import CHAT_TEMPLATE, train_tokenizer, write_tokenizer
from areal_actors.sequences.step_metrics import example_metrics, examples_checksum
from areal_actors.supervised.example_sequences import ExampleSequences, sequences_of_example
from areal_actors.supervised.examples import Example, ExampleConversation
from areal_actors.tokenization.tokenizer import ChatTokenizer

FOLDER = Path(
    os.environ.get("AREAL_CHAT_TEMPLATES", Path(__file__).parent.parent.parent / "shared" / "data" / "chat_templates")
)
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))} or {"embedded": CHAT_TEMPLATE}
"""The templates of real models, where they are at hand."""
WITHOUT_END = ("glm4moe",)
"""Templates that write nothing behind an answer: the next turn's beginning ends it."""


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def demonstration(*messages, first=1):
    return Example((ExampleConversation(messages, first),), "here")


def pair(chosen, rejected):
    return Example(
        (
            ExampleConversation((user("2+3?"), assistant(chosen)), 1),
            ExampleConversation((user("2+3?"), assistant(rejected)), 1),
        ),
        "here",
    )


def learned(row, tokenizer):
    """The text of the learned tokens."""
    return tokenizer.decode(row.token_ids[row.loss_mask].tolist(), skip_special=False)


def whole(row, tokenizer):
    return tokenizer.decode(row.token_ids.tolist(), skip_special=False)


def test_assistant_tokens_and_the_end_of_their_turn_are_trained():
    tokenizer = letters()
    (row,) = sequences_of_example(
        demonstration(user("hi"), assistant("yes"), user("and"), assistant("no")), 4, tokenizer
    )
    assert whole(row, tokenizer) == "u:hi\na:yes\nu:and\na:no\n"
    assert learned(row, tokenizer) == "yes\nno\n"
    assert (row.group, row.reward, row.truncated) == (4, 1.0, False)
    assert set(row.versions.tolist()) == {-1}
    assert not row.logprobs.any()


def test_what_comes_before_the_first_learned_message_is_context():
    tokenizer = letters()
    shown = demonstration(user("hi"), assistant("yes"), user("and"), assistant("no"), first=2)
    (row,) = sequences_of_example(shown, 0, tokenizer)
    assert whole(row, tokenizer) == "u:hi\na:yes\nu:and\na:no\n"
    assert learned(row, tokenizer) == "no\n"


def test_an_answer_that_is_only_answered_to_is_context():
    tokenizer = letters()
    messages = (user("hi"), assistant("six"), user("wrong"), assistant("five"))
    (row,) = sequences_of_example(
        Example((ExampleConversation(messages, 0, unlearned=frozenset({1})),), "here"), 0, tokenizer
    )
    assert whole(row, tokenizer) == "u:hi\na:six\nu:wrong\na:five\n"
    assert learned(row, tokenizer) == "five\n"


def test_a_pair_is_two_rows_of_one_group_the_preferred_one_with_reward_1():
    tokenizer = letters()
    rows = sequences_of_example(pair("five", "six"), 7, tokenizer)
    assert [(row.group, row.reward, learned(row, tokenizer)) for row in rows] == [(7, 1.0, "five\n"), (7, 0.0, "six\n")]


def test_a_scored_row_is_the_whole_conversation_and_is_scored_at_its_last_token():
    tokenizer = letters()
    rows = sequences_of_example(pair("five", "six"), 0, tokenizer, scored=True)
    for row, answer in zip(rows, ("five", "six"), strict=True):
        text = tokenizer.render([user("2+3?"), assistant(answer)], add_generation_prompt=False)
        assert row.token_ids[:-1].tolist() == tokenizer.encode(text)
        assert np.flatnonzero(row.loss_mask).tolist() == [len(row.token_ids) - 1], "position t - 1 scores position t"


@pytest.mark.parametrize("name", TEMPLATES)
def test_with_the_templates_of_real_models_each_answer_is_learned_once_behind_the_prompt_that_the_gateway_makes(name):
    tokenizer = family(TEMPLATES[name])
    turns = [user("What is 2+3?"), assistant("It is five."), user("And 3+4?"), assistant("That is seven.")]
    rows = sequences_of_example(demonstration(*turns), 0, tokenizer)
    learned_texts = [text for row in rows for text in [learned(row, tokenizer)]]
    assert all("".join(learned_texts).count(answer) == 1 for answer in ("It is five.", "That is seven."))
    assert not any(asked in "".join(learned_texts) for asked in ("2+3", "3+4"))
    assert int(rows[-1].token_ids[-1]) in tokenizer.stop_ids or name in WITHOUT_END
    assert rows[-1].loss_mask[-1], "nothing is kept behind the last answer"
    assert "It is five." in whole(rows[-1], tokenizer), "what was said before is context"


REWRITING = (
    "{% for message in messages %}{{ message.role[0] + ':' + message.content }}"
    "{{ '!' if loop.last and message.role == 'assistant' else '' }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)


def test_where_the_template_rewrites_earlier_turns_each_answer_has_a_row():
    tokenizer = letters(template=REWRITING)
    rows = sequences_of_example(demonstration(user("hi"), assistant("yes"), user("and"), assistant("no")), 0, tokenizer)
    assert [(whole(row, tokenizer), learned(row, tokenizer)) for row in rows] == [
        ("u:hi\na:yes!\n", "yes!\n"),
        ("u:hi\na:yes\nu:and\na:no!\n", "no!\n"),
    ]


def test_a_pair_that_would_not_stand_in_one_row_is_refused_by_name():
    turns = (user("hi"), assistant("yes"), user("and"))
    example = Example(
        tuple(ExampleConversation((*turns, assistant(last)), 1) for last in ("no", "maybe")), "pairs.jsonl:3"
    )
    with pytest.raises(
        SetupError, match=r"pairs\.jsonl:3: the model's chat template rewrites earlier turns.*into `prompt`"
    ):
        sequences_of_example(example, 0, letters(template=REWRITING))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{{ raise_exception('no system prompts here') }}",
            "here: the model's chat template rejects these messages: no system prompts here",
        ),
        ("", "here: the model has no chat template"),
        (
            "{{ messages | length }}",
            "here: the model's chat template does not append message 1 to the messages before it",
        ),
    ],
)
def test_an_example_that_the_template_cannot_write_is_named(template, words):
    with pytest.raises(SetupError, match=words):
        sequences_of_example(demonstration(user("hi"), assistant("yes")), 0, letters(template=template))


def test_rows_are_those_of_the_numbers_drawn_and_held_out_ones_come_when_they_are_due(tmp_path):
    write_tokenizer(train_tokenizer(), tmp_path)
    train = [demonstration(user(f"{number}+1?"), assistant(str(number + 1))) for number in range(4)]
    kept = [demonstration(user(f"{number}+2?"), assistant(str(number + 2))) for number in range(3)]
    lessons = ExampleSequences(train, kept, due=lambda version: 2 if version == 5 else 0)
    with pytest.raises(RuntimeError, match="loaded a tokenizer"):
        lessons.sequences([0])
    lessons.begin(str(tmp_path))
    tokenizer = ChatTokenizer.load(tmp_path)
    rows = lessons.sequences([3, 1])
    assert [(row.group, learned(row, tokenizer)) for row in rows] == [(0, "4<|im_end|>"), (1, "2<|im_end|>")]
    assert [learned(row, tokenizer) for row in lessons.held_out_sequences(5)] == ["2<|im_end|>", "3<|im_end|>"]
    assert lessons.held_out_sequences(4) == []
    assert (
        examples_checksum(rows)
        == examples_checksum(lessons.sequences([3, 1]))
        != examples_checksum(lessons.sequences([1, 3]))
    )


def test_metrics_of_rewards_are_left_out_and_examples_counted():
    rows = sequences_of_example(pair("five", "six"), 0, letters()) + sequences_of_example(pair("a", "b"), 1, letters())
    learned_texts = {
        "loss": 0.5,
        "accuracy": 1.0,
        "reward_mean": 0.5,
        "advantage_std": 0.0,
        "train_infer_logprob_diff_max": 0.0,
        "chosen_reward": 0.1,
    }
    assert example_metrics(learned_texts, rows) == {"loss": 0.5, "accuracy": 1.0, "chosen_reward": 0.1, "examples": 2.0}
