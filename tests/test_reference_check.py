"""References that a rule cannot read are counted with their rows before anything starts."""

import json

import pytest

from areal_actors.core.errors import SetupError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.run.reference_check import check_references
from areal_actors.tasks.datasets import open_dataset


def references(tmp_path, answers, held_out=0, **task):
    """The sentences about a dataset of these answers."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": f"question {number}", "answer": answer}) + "\n"
            for number, answer in enumerate(answers)
        )
    )
    settings = TaskSettings(dataset=str(path), held_out=held_out, **task)
    return check_references(settings, open_dataset(str(path), seed=0, held_out=held_out))


UNREADABLE = ["18", "????", r"\frac{1}{2}", r"It is \boxed{3", "July 4", "we leave the proof of this to the reader"]


def test_a_reference_that_math_cannot_read_refuses_the_run_and_is_named_with_its_row(tmp_path):
    with pytest.raises(SetupError) as refused:
        references(tmp_path, UNREADABLE, reward="math")
    message = str(refused.value)
    assert message.startswith("task.dataset: 3 of 6 references of ")
    assert "rows 1, 3, 5, counted from 0 (row 1: " in message
    assert 'task.unreadable_references = "warn"' in message


def test_unreadable_references_are_played_with_a_sentence_where_the_recipe_allows_it(tmp_path):
    (sentence,) = references(tmp_path, UNREADABLE, reward="math", unreadable_references="warn")
    assert "3 of 6 references" in sentence
    assert "so that no answer to them is right" in sentence


def test_readable_references_are_counted_and_those_compared_as_text_only_named(tmp_path):
    (sentence,) = references(
        tmp_path, ["18", r"\frac{1}{2}", "July 4", r"a \heartsuit \spadesuit b :: c"], reward="math"
    )
    assert "math reads all 4 references of " in sentence
    assert sentence.endswith("1 are compared as text only: row 3, counted from 0")


def test_held_out_rows_and_the_parts_of_a_sum_are_read_too(tmp_path):
    options = {"gsm8k": {"weight": 1.0}, "math": {"weight": 1.0}}
    with pytest.raises(
        SetupError, match=r'2 of 3 references of .* cannot be read by task\.reward = "gsm8k".*rows 0, 2'
    ):
        references(tmp_path, ["eighteen", "#### 18", "????"], held_out=1, reward="weighted", reward_options=options)


def test_a_function_of_ones_own_has_no_references(tmp_path):
    assert references(tmp_path, ["????"], reward="rewards.py:mine") == []
