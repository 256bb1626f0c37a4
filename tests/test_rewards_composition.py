"""Several rewards in one: a list, its weights and gates, and the rules of an answer's form."""

from __future__ import annotations

import jsonschema
import pytest
from support.live_run import RECIPE

from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.reference import json_schema
from areal_actors.rewards import resolve_reward
from areal_actors.rewards.answer_form import AnswerForm, Length
from areal_actors.rewards.checks import check_score

TASK = {"question": "?", "answer": "#### 4"}
RIGHT = "So <answer>#### 4</answer>"


def load_rewards(*overrides):
    return load([RECIPE], ["profile=embedded", *overrides], detect_cuda("libno-such-driver.so.1")).recipe.task


def score(overrides, output):
    task = load_rewards(*overrides)
    value = check_score(resolve_reward(task.reward, options=task.reward_options)(TASK, output))
    return float(value), dict(value.metrics)


def test_a_list_is_the_sum_of_its_rewards():
    value, metrics = score(['task.reward=["gsm8k", "length:20", "format:answer-tag"]'], RIGHT)
    assert value == pytest.approx(1 + 0.7 + 1)
    assert {name: metrics[name] for name in ("gsm8k", "length:20", "format:answer-tag")} == {
        "gsm8k": 1.0,
        "length:20": pytest.approx(0.7),
        "format:answer-tag": 1.0,
    }


def test_a_part_with_a_gate_counts_only_where_the_other_is_right():
    settings = [
        'task.reward=["format:answer-tag", "gsm8k"]',
        'task.reward_options={"format:answer-tag" = {weight = 0.2, only_if = "gsm8k"}}',
    ]
    assert score(settings, RIGHT)[0] == pytest.approx(1.2)
    assert score(settings, "#### 4")[0] == 1.0
    value, metrics = score(settings, "<answer>#### 5</answer>")
    assert value == 0.0
    assert metrics["format:answer-tag"] == 0.0


def test_two_forms_of_one_rule_and_a_function_of_a_file_are_parts(tmp_path):
    (tmp_path / "mine.py").write_text("def two(task, output):\n    return 2.0\n")
    function = f"{tmp_path / 'mine.py'}:two"
    value, metrics = score([f'task.reward=["format:boxed", "format:json", "{function}"]'], "\\boxed{4}")
    assert value == 3.0
    assert metrics["format:json"] == 0.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['task.reward=["gsm8k", "gsm8k"]'], "`gsm8k` occurs twice"),
        (['task.reward=["gsm8k", 3]'], "found 3; write names of rewards"),
        (['task.reward=["gsm9k"]'], "did you mean"),
        (['task.reward=["length:many"]'], "many"),
        (['task.reward=["format:answer"]'], "answer-tag"),
        (
            ['task.reward=["gsm8k"]', "task.reward_options={math = {weight = 1}}"],
            "`math` is none of the rewards `gsm8k`",
        ),
        (['task.reward=["gsm8k"]', 'task.reward_options={gsm8k = {only_if = "math"}}'], "math"),
        (['task.reward=["gsm8k", "length"]', 'task.reward_options={length = {weight = "1"}}'], "finite weight"),
    ],
)
def test_a_wrong_list_is_refused_by_name(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load_rewards(*overrides)


def test_gates_in_a_circle_are_refused():
    options = {
        "length": {"weight": 1, "only_if": "format"},
        "format": {"weight": 1, "only_if": "length"},
    }
    with pytest.raises(RecipeError, match="`length`, `format` are only counted if another of them is"):
        resolve_reward("weighted", options=options)


def test_an_editor_accepts_a_list_and_a_name():
    validator = jsonschema.Draft202012Validator(json_schema())
    for reward in ("math", ["math", "length:512"]):
        validator.validate({"task": {"reward": reward}})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"task": {"reward": [1]}})


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (
            "answer-tag",
            ["<answer>4</answer>", "a <answer> b </answer> c"],
            ["4", "<answer> </answer>", "<answer>4", "<answer>4</answer><answer>5</answer>"],
        ),
        ("boxed", ["\\boxed{4}", "so \\boxed { x }"], ["boxed{4}", "\\boxed{}", "\\boxed{ }"]),
        (
            "think",
            ["<think>a</think> b", "\n<think>a\nb</think>\nc"],
            ["<think>a</think>", "b", "<think></think>b", "a<think>b</think>c"],
        ),
        (
            "think-answer",
            ["<think>a</think><answer>b</answer>"],
            ["<think>a</think>b", "<answer>b</answer>", "<think>a</think>x<answer>b</answer>"],
        ),
        ("json", ['{"a": 1}', "3"], ["a", "{", "[" * 100_000]),
    ],
)
def test_a_form_is_recognised(form, right, wrong):
    rule = AnswerForm(form=form)
    assert [rule({}, text) for text in right] == [1.0] * len(right)
    assert [rule({}, text) for text in wrong] == [0.0] * len(wrong)


def test_a_longer_answer_has_less():
    rule = Length(most=10)
    assert [rule({}, "x" * count) for count in (0, 10, 15, 20, 1000)] == [1.0, 1.0, 0.5, 0.0, 0.0]
