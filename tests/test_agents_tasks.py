"""The tasks that come with the agents, and the rewards of answers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.framework_harness import ROOT

from areal_actors.rewards import resolve_reward
from areal_actors.tasks.datasets import open_dataset

TASKS = ROOT / "agents" / "tasks"


def test_the_files_are_what_their_maker_makes(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts" / "make_tasks.py", tmp_path], check=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {path.name: path.read_text() for path in TASKS.iterdir()}


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
