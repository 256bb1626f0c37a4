import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.rewards.gsm8k import gsm8k
from areal_actors.tasks.datasets import open_dataset

GSM8K = Path(os.environ.get("AREAL_GSM8K", Path(__file__).parent.parent.parent / "shared" / "data" / "gsm8k"))
ROOT = Path(__file__).parent.parent


def write(path, count, first=0):
    rows = [
        {"question": f"What is {number}?", "answer": f"#### {number}", "level": 1}
        for number in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def draws(tasks, start, stop):
    return [tasks.task(n).id for n in range(start, stop)]


def test_an_epoch_draws_every_task_once_and_each_epoch_in_another_order(tmp_path):
    train = open_dataset(write(tmp_path / "rows.jsonl", 40), seed=3, held_out=0).train
    first, second = draws(train, 0, 40), draws(train, 40, 80)
    assert len(train) == 40
    assert sorted(first) == sorted(second) == sorted(f"rows-{n}" for n in range(40))
    assert first != second
    assert first != sorted(first)


def test_the_nth_draw_depends_on_the_seed_and_n_alone(tmp_path):
    path = write(tmp_path / "rows.jsonl", 40)
    once = draws(open_dataset(path, seed=3, held_out=5).train, 0, 90)
    assert draws(open_dataset(path, seed=3, held_out=5).train, 50, 90) == once[50:]
    assert draws(open_dataset(path, seed=4, held_out=5).train, 0, 90) != once


def test_the_same_draws_come_on_every_machine(tmp_path):
    train = open_dataset(write(tmp_path / "rows.jsonl", 6), seed=0, held_out=0).train
    assert draws(train, 0, 12) == [f"rows-{n}" for n in [2, 5, 1, 3, 4, 0, 1, 0, 3, 5, 2, 4]]


def test_ids_are_those_of_the_file_and_stand_in_the_data(tmp_path):
    dataset = open_dataset(write(tmp_path / "rows.jsonl", 10), seed=0, held_out=4)
    for task in (*dataset.train.rows, *dataset.held_out.rows):
        number = task.id.removeprefix("rows-")
        assert task.data == {"id": task.id, "question": f"What is {number}?", "answer": f"#### {number}", "level": 1}


@pytest.mark.parametrize("seed", range(5))
def test_held_out_rows_are_never_trained_on(tmp_path, seed):
    path = write(tmp_path / "rows.jsonl", 50)
    with Path(path).open("a") as file:
        file.write(Path(path).read_text().splitlines()[7])  # the same question once more
    dataset = open_dataset(path, seed=seed, held_out=20)
    questions = [{task.data["question"] for task in tasks.rows} for tasks in (dataset.train, dataset.held_out)]
    assert questions[0] & questions[1] == set()
    assert len(dataset.held_out) == 20
    assert (
        draws(dataset.held_out, 0, 20) == draws(dataset.held_out, 20, 40) == [task.id for task in dataset.held_out.rows]
    )


def test_a_second_file_is_held_out_and_what_both_have_is_not_trained_on(tmp_path):
    path, other = write(tmp_path / "rows.jsonl", 30), write(tmp_path / "other.jsonl", 20, first=25)
    dataset = open_dataset(path, seed=0, held_out=other)
    assert (len(dataset.train), len(dataset.held_out)) == (25, 20)
    assert dataset.held_out.task(0).id == "held-out-other-0"
    with pytest.raises(
        RecipeError, match=r"every question of .*rows.jsonl is also in .*rows.jsonl; .*name a file of other tasks"
    ):
        open_dataset(path, seed=0, held_out=path)


def test_tasks_of_one_question_are_held_out_by_their_answers(tmp_path):
    path = tmp_path / "game.jsonl"
    path.write_text(
        "".join(f'{{"question": "Guess my number.", "answer": "{number % 40}"}}\n' for number in range(120))
    )
    dataset = open_dataset(str(path), seed=0, held_out=10)
    answers = [{task.data["answer"] for task in tasks.rows} for tasks in (dataset.train, dataset.held_out)]
    assert answers[0] & answers[1] == set()
    assert len(dataset.held_out) == 10
    assert len(dataset.train) == 120 - 3 * len(answers[1])
    with pytest.raises(RecipeError, match="every question of"):
        open_dataset(str(path), seed=0, held_out=119)


def test_made_problems_differ_between_training_and_evaluation(tmp_path):
    dataset = open_dataset("arithmetic", seed=1, held_out=100)
    assert len(dataset.held_out) == 100
    assert {task.data["question"] for task in dataset.train.rows} & {
        task.data["question"] for task in dataset.held_out.rows
    } == set()
    assert [gsm8k(task.data, task.data["answer"]) for task in dataset.held_out.rows] == [1.0] * 100
    assert dataset.held_out == open_dataset("arithmetic", seed=2, held_out=100).held_out
    assert dataset.train.task(0) != open_dataset("arithmetic", seed=2).train.task(0)
    assert dataset.train.task(0).id.startswith("arithmetic-train-")
    mixed = open_dataset("arithmetic", seed=1, held_out=write(tmp_path / "rows.jsonl", 3))
    assert [task.id for task in mixed.held_out.rows] == ["held-out-rows-0", "held-out-rows-1", "held-out-rows-2"]


GOOD = '{"question": "q", "answer": "#### 1"}\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD + "\n{broken\n", r"rows.jsonl:3: not JSON: JSON is malformed"),
        (GOOD + "[1]\n", r"rows.jsonl:2: expected an object with `question` and `answer`, got list"),
        ('{"question": "q"}\n', r"rows.jsonl:1: `answer` is missing; the row has `question`"),
        ("{}\n", r"rows.jsonl:1: `question` is missing; the row has no fields"),
        ('{"question": "q", "answer": [1, 2]}\n', r"rows.jsonl, row 0: `answer` has several values; choose one"),
        ('{"question": " ", "answer": "#### 1"}\n', r"rows.jsonl:1: `question` must be a non-empty text, got ' '"),
        ("\n\n", r"rows.jsonl: the file has no rows; write one object a line"),
        ("", r"rows.jsonl: the file has no rows"),
    ],
)
def test_a_wrong_row_is_named_by_file_line_and_field(tmp_path, text, complaint):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(SetupError, match=complaint):
        open_dataset(str(tmp_path / "rows.jsonl"), seed=0, held_out=0)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(
        SetupError, match=r"nothing.jsonl: cannot be read: No such file or directory; name an existing .jsonl file"
    ):
        open_dataset(str(tmp_path / "nothing.jsonl"), seed=0)
    (tmp_path / "rows.jsonl").write_bytes(b'{"question": "\xe9"}')
    with pytest.raises(SetupError, match=r"rows.jsonl: byte 14 is not UTF-8; save the file as UTF-8"):
        open_dataset(str(tmp_path / "rows.jsonl"), seed=0)
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert len(open_dataset(str(tmp_path / "rows.jsonl"), seed=0, held_out=0).train) == 1


def test_what_cannot_be_held_out_is_refused(tmp_path):
    with pytest.raises(
        RecipeError,
        match=r"`task.held_out`: found 200, but .*rows.jsonl has 30 rows; hold out fewer, or name a second file",
    ):
        open_dataset(write(tmp_path / "rows.jsonl", 30), seed=0)
    with pytest.raises(
        RecipeError, match=r"`task.dataset`: there is no dataset `gsm8k`; write `arithmetic`, `owner/name` on"
    ):
        open_dataset("gsm8k", seed=0)


def test_gsm8k_without_the_library_is_an_error_that_names_the_package():
    program = (
        "import sys; sys.modules['datasets'] = None\n"
        "from areal_actors.tasks.datasets import open_dataset\n"
        "from areal_actors.core.errors import SetupError\n"
        "try: open_dataset('openai/gsm8k', seed=0)\n"
        "except SetupError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.startswith(
        "openai/gsm8k needs the `datasets` library: pip install 'areal-actors[data]' (in a clone:"
    )
    assert "Without it: task.dataset=PATH" in done.stdout


if (GSM8K / "train.jsonl").is_file():

    def test_the_real_gsm8k_opens_as_two_files():
        dataset = open_dataset(str(GSM8K / "train.jsonl"), seed=0, held_out=str(GSM8K / "test.jsonl"))
        assert (len(dataset.train), len(dataset.held_out)) == (7473, 1319)
        assert dataset.train.rows[0].id == "train-0"
