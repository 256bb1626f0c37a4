"""Our own word problems: their format is GSM8K's, their arithmetic is right, their splits do not meet."""

import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from areal_actors.rewards.gsm8k import gsm8k
from areal_actors.tasks.arithmetic import ITEMS, NAMES, TEMPLATES, problems, rows

ROOT = Path(__file__).parent.parent
CALCULATION = re.compile(r"(\d+)([-+*])(\d+)=<<(\d+[-+*]\d+)=(\d+)>>(\d+)")


def generated(split, count=600, seed=1):
    return list(islice(problems(split, seed), count))


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_working_is_two_right_steps_that_lead_to_the_answer(split):
    for problem in generated(split):
        steps = CALCULATION.findall(problem.answer)
        assert len(steps) == 2
        for left, sign, right, annotated, result, shown in steps:
            value = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
            assert (annotated, int(result), int(shown)) == (f"{left}{sign}{right}", value, value)
            assert value > 0
        assert steps[0][-1] == steps[1][0]
        assert problem.answer.splitlines()[-1] == f"#### {steps[1][-1]}" == problem.direct_answer


def test_the_numbers_of_the_working_are_those_of_the_question():
    for problem in generated("train"):
        asked = re.findall(r"\d+", problem.question)
        first, second = CALCULATION.findall(problem.answer)
        assert sorted([first[0], first[2], second[2]]) == sorted(asked)


def test_the_reward_function_reads_worked_and_direct_answers():
    for problem in generated("test", 50):
        task = {"question": problem.question, "answer": problem.answer}
        assert gsm8k(task, problem.answer) == gsm8k(task, problem.direct_answer) == 1.0
        assert gsm8k(task, f"#### {problem.result + 1}") == 0.0


def test_held_out_numbers_are_never_trained_in_the_same_story():
    def numbers(problem):
        story = re.sub("|".join((*NAMES, *ITEMS)), "", problem.question)
        return re.sub(r"\d+", "", story), tuple(re.findall(r"\d+", problem.question))

    trained = {numbers(problem) for problem in generated("train", 5000)}
    held_out = {numbers(problem) for problem in generated("test", 2000)}
    assert not trained & held_out
    assert {story for story, _ in trained} == {story for story, _ in held_out}
    assert len({story for story, _ in trained}) == len(TEMPLATES) >= 5


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    assert rows("train", 20, seed=3) == rows("train", 20, seed=3)
    assert rows("train", 20, seed=3) != rows("train", 20, seed=4)
    assert rows("train", 5, seed=3) == rows("train", 20, seed=3)[:5]


def test_the_same_seed_gives_the_same_rows_in_every_process():
    program = (
        "from areal_actors.tasks.arithmetic import rows; import sys; sys.stdout.write(repr(rows('test', 3, seed=0)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    ).stdout
    assert printed == repr(rows("test", 3, seed=0))


def test_rows_have_the_columns_of_gsm8k_and_use_every_name_and_item():
    drawn = rows("train", 1000, seed=0)
    assert {tuple(row) for row in drawn} == {("question", "answer")}
    text = " ".join(row["question"] for row in drawn)
    assert all(word in text for word in (*NAMES, *ITEMS))
