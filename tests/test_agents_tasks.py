"""The tasks that come with the agents, and the rewards of answers."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.framework_harness import ROOT

from areal_actors.rewards import resolve_reward
from areal_actors.tasks.datasets import open_dataset

TASKS = ROOT / "agents" / "tasks"


def test_the_files_are_what_their_maker_makes(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts" / "make_tasks.py", tmp_path], check=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in TASKS.iterdir()
    }


@pytest.mark.parametrize(("name", "agent"), [("countdown", "countdown"), ("encyclopedia", "search")])
def test_the_reference_answer_of_every_task_has_reward_1(name, agent):
    reward = resolve_reward(f"agents/{agent}.py:reward", ROOT)
    dataset = open_dataset(str(TASKS / f"{name}.jsonl"), seed=0, held_out=50)
    assert len(dataset.held_out) == 50
    for task in [*dataset.train.rows, *dataset.held_out.rows]:
        for form in ("<answer>{}</answer>", "Answer: {}"):
            right = ("<" in form) == (name == "countdown")
            assert reward(task.data, form.format(task.data["answer"])) == float(right)


GAME = {"numbers": [3, 5, 5, 7], "target": 42}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("<answer>7 * (5 + 3 - 5) * 1</answer>", 0.0),
        ("<answer>7 * (5 + 5 - 3)</answer>", 0.1),
        ("<answer>(5 + 3) * 5 + 7 - 5</answer>", 0.0),
        ("<answer>(3 + 5) * 5 + 7</answer>", 0.1),
        ("<answer>5 / (5 - 5) + 7 + 3</answer>", 0.0),
        ("<answer>3 / (5 - 5) + 7</answer>", 0.0),
        ("<answer>42</answer>", 0.0),
        ("<answer>7 ** 3 + 5 + 5</answer>", 0.0),
        ("<answer>__import__('os')</answer>", 0.0),
        ("<answer>" + "(" * 150 + "</answer>", 0.0),
        ("<answer>" + "3+" * 500 + "3</answer>", 0.0),
        ("3 + 5 + 5 + 7", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward_of_a_countdown_answer(output, expected):
    assert resolve_reward("agents/countdown.py:reward", ROOT)(GAME, output) == expected


def test_countdown_is_exact_and_takes_the_last_answer():
    reward = resolve_reward("agents/countdown.py:reward", ROOT)
    thirds = {"numbers": [1, 3, 3], "target": 1}
    assert reward(thirds, "<answer>1 / 3 * 2</answer> no: <answer>1 / 3 * 3</answer>") == 1.0
    assert reward(thirds, "<answer>1 / 3 * 3</answer> no: <answer>1 + 3 + 3</answer>") == 0.1


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("Answer: Ada Noreth", 1.0),
        ("answer: Ada Noreth", 0.0),
        ("Answer: x\nAnswer: ada noreth.", 1.0),
        ("Ada Noreth", 0.0),
        ("Answer:", 0.0),
    ],
)
def test_the_reward_of_a_search_answer(output, expected):
    assert resolve_reward("agents/search.py:reward", ROOT)({"answer": "Ada Noreth"}, output) == expected


# ------------------------------------------------------------ tasks of a small pretrained model


@pytest.mark.parametrize("name", ["sums", "extraction"])
def test_generated_tasks_are_the_same_each_time_and_hold_others_out(name):
    dataset, again = (open_dataset(f"agents/{name}.py:tasks", seed=0, held_out=200) for _ in range(2))
    assert [task.data for task in dataset.train.rows] == [task.data for task in again.train.rows]
    reward = resolve_reward(f"agents/{name}.py:reward", ROOT)
    tasks = [*dataset.train.rows, *dataset.held_out.rows]
    assert len(dataset.held_out) == 200
    assert len(dataset.train) > 3000
    for task in tasks:
        scored = reward(task.data, task.data["answer"])
        assert (scored["reward"] if isinstance(scored, dict) else scored) == 1.0


def test_held_out_sums_have_numbers_that_no_trained_sum_has():
    dataset = open_dataset("agents/sums.py:tasks", seed=0, held_out=200)
    trained, held_out = (
        {tuple(sorted(map(int, re.findall(r"\d+", task.data["question"])))) for task in tasks.rows}
        for tasks in (dataset.train, dataset.held_out)
    )
    assert len(trained) > 100
    assert len(held_out) > 20
    assert not trained & held_out


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("8 + 9 = 17", 1),
        ("17", 1),
        ("The sum is 1,7", 1),
        ("17 = 8 + 9", 0),
        ("8 + 9 = 170", 0),
        ("seventeen", 0),
        ("", 0),
    ],
)
def test_the_reward_of_a_sum_is_for_its_last_number(output, expected):
    assert resolve_reward("agents/sums.py:reward", ROOT)({"answer": "17"}, output) == expected


@pytest.mark.parametrize(
    ("output", "expected", "exact"),
    [
        ("name: Ana; city: Rome", 1.0, 1.0),
        (" name: Ana; city: Rome\n", 1.0, 1.0),
        ("name: Ana; city: Rome; age: 3", 0.4, 0.0),
        ("Ana lives in Rome", 0.4, 0.0),
        ("name: Anabel; city: Rome", 0.2, 0.0),
        ("I do not know.", 0.0, 0.0),
    ],
)
def test_the_reward_of_an_extraction_is_for_its_parts_and_its_form(output, expected, exact):
    scored = resolve_reward("agents/extraction.py:reward", ROOT)({"answer": "name: Ana; city: Rome"}, output)
    assert scored == {"reward": pytest.approx(expected), "exact": exact}
