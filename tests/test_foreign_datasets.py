"""Data sets as others publish them are read without code; what is not named is recognised by the first row, and
printed."""

from __future__ import annotations

import gzip
import json
import tomllib

import pytest
from support.foreign_datasets import DATASETS, ROWS

from areal_actors.core.errors import RewardError, SetupError
from areal_actors.rewards import resolve_reward
from areal_actors.rewards.scored import score_output
from areal_actors.tasks.datasets import open_dataset
from areal_actors.tasks.values import as_text


def write(folder, name, body):
    path = folder / name
    path.write_bytes(body if isinstance(body, bytes) else "".join(f"{json.dumps(row)}\n" for row in body).encode())
    return str(path)


def columns_of(settings):
    return tomllib.loads(settings).get("columns", {})


@pytest.mark.parametrize("shape", DATASETS)
def test_a_published_shape_is_read_without_code(tmp_path, shape):
    name, body, settings, recognised = DATASETS[shape]
    dataset = open_dataset(write(tmp_path, name, body), seed=0, held_out=4, columns=columns_of(settings))
    assert dataset.recognised == recognised
    tasks = sorted((*dataset.train.rows, *dataset.held_out.rows), key=lambda task: int(task.id.rpartition("-")[2]))
    assert [task.data["question"] for task in tasks] == [row["question"] for row in ROWS]
    rule = resolve_reward("gsm8k")
    assert all(rule(task.data, row["answer"])["reward"] == 1.0 for task, row in zip(tasks, ROWS, strict=True))
    assert {type(task.data["answer"]) for task in tasks} == {str}


def test_a_path_names_a_field_inside_of_a_column_and_lists_count_from_both_ends(tmp_path):
    rows = [
        {"chat": [{"role": "user", "content": f"q{n}"}], "info": {"index": n, "answers": ["no", n]}} for n in range(3)
    ]
    columns = {"question": "chat", "answer": "info.answers.-1", "index": "info.index"}
    dataset = open_dataset(write(tmp_path, "rows.jsonl", rows), seed=0, held_out=0, columns=columns)
    assert [(task.data["answer"], task.data["index"], task.data["question"]) for task in dataset.train.rows] == [
        ("0", 0, "q0"),
        ("1", 1, "q1"),
        ("2", 2, "q2"),
    ]
    assert dataset.train.rows[0].data["messages"] == [{"role": "user", "content": "q0"}]


@pytest.mark.parametrize("columns", [{"index": "extra.index"}, {"answer": "info.answer"}, {"hint": "hints"}])
def test_a_mapping_that_finds_nothing_is_refused_with_the_columns_that_exist(tmp_path, columns):
    path = write(tmp_path, "rows.jsonl", [{"question": "q", "answer": 1, "info": {"index": 3}}])
    (field,) = columns
    with pytest.raises(
        SetupError, match=rf"`task.columns` has {field} = .*; the columns are `question`, `answer`, `info.index`"
    ):
        open_dataset(path, seed=0, held_out=0, columns=columns)


def test_several_answers_and_a_row_of_another_shape_are_refused_by_place(tmp_path):
    several = write(tmp_path, "several.jsonl", [{"question": "q", "answer": ["1", "2"]}])
    with pytest.raises(
        SetupError, match=r"`answer` has several values; choose one: `task.columns = \{ answer = \"answer.0\" \}`"
    ):
        open_dataset(several, seed=0, held_out=0)
    assert open_dataset(several, seed=0, held_out=0, columns={"answer": "answer.0"}).train.task(0).data["answer"] == "1"
    chat = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}]
    with pytest.raises(SetupError, match="row 1: `messages` must be a list of messages, as in row 0"):
        open_dataset(write(tmp_path, "mixed.jsonl", [*chat, {"messages": "q"}]), seed=0, held_out=0)


def test_nested_columns_are_named_by_path_with_the_setting_that_chooses_one(tmp_path):
    rows = [{"id": "r", "qa": {"question": "q", "answers": {"text": ["1", "one"], "start": [0, 0]}}}] * 2
    path = write(tmp_path, "nested.jsonl", rows)
    with pytest.raises(
        SetupError,
        match=r"`question` is missing; the row has `id`, `qa.question`, `qa.answers.text`, `qa.answers.start`; .*"
        r"`task.columns = \{ question = \"qa.question\" \}`",
    ):
        open_dataset(path, seed=0, held_out=0)
    columns = {"question": "qa.question", "answer": "qa.answers.text"}
    with pytest.raises(SetupError, match=r"has several values; choose one: .*answer = \"qa.answers.text.0\""):
        open_dataset(path, seed=0, held_out=0, columns=columns)
    chosen = open_dataset(path, seed=0, held_out=0, columns={**columns, "answer": "qa.answers.text.0"})
    assert chosen.train.task(0).data["answer"] == "1"


def test_chats_that_differ_before_their_last_message_are_different_tasks(tmp_path):
    rows = [
        {"prompt": [{"role": "system", "content": str(n)}, {"role": "user", "content": "go"}], "answer": n}
        for n in range(10)
    ]
    dataset = open_dataset(write(tmp_path, "rows.jsonl", rows), seed=0, held_out=3)
    assert (len(dataset.train), len(dataset.held_out)) == (7, 3)


@pytest.mark.parametrize(
    ("name", "body", "complaint"),
    [
        (
            "rows.csv",
            b"question,answer\nq\n",
            r"rows.csv:2: the line has another number of cells than the header, which has 2",
        ),
        ("rows.json", b'{"question": ', r"rows.json:1: not JSON"),
        ("rows.json", b"[1, 2]", r"rows.json: expected a list of objects"),
        ("rows.jsonl.gz", b"no gzip", r"rows.jsonl.gz: cannot be decompressed"),
        (
            "rows.jsonl.gz",
            gzip.compress(b'{"question": "q", "answer": "a"}\n', mtime=0)[:-9],
            r"rows.jsonl.gz: cannot be decompressed",
        ),
        ("rows.tsv", b"question\tanswer\n\xff\t1\n", r"rows.tsv: byte 16 is not UTF-8"),
        ("rows.csv", b"question,answer\n", r"rows.csv: the file has no rows"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_with_its_place(tmp_path, name, body, complaint):
    with pytest.raises(SetupError, match=complaint):
        open_dataset(write(tmp_path, name, body), seed=0, held_out=0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(
            (204, "204"),
            (1.5, "1.5"),
            (204.0, "204"),
            (["204"], "204"),
            ([3], "3"),
            (1e-20, "1e-20"),
            (10**40, str(10**40)),
        ),
        *((True, "true"), (float("nan"), None), ({"a": 1}, None), (["1", "2"], None), ([], None), (None, None)),
    ],
)
def test_numbers_and_lists_of_one_are_texts(value, text):
    assert as_text(value) == text


SIGNATURES = {
    "verl": (
        "def f(data_source, solution_str, ground_truth, extra_info=None): return float(ground_truth in solution_str)",
        1.0,
        {},
    ),
    "verl with score": (
        "def f(solution_str, ground_truth, **kw): return {'score': 0.5, 'acc': ground_truth == '7', 'pred': 'x'}",
        0.5,
        {"acc": 1.0},
    ),
    "trl": (
        "def f(prompts, completions, **kw): return [float(kw['answer'][0] in completions[0]) for _ in completions]",
        1.0,
        {},
    ),
    "trl by name": ("def f(completions, answer): return [float(len(answer))]", 1.0, {}),
    "trl coroutine": ("async def f(completions, **kw): return [0.25]", 0.25, {}),
    "own": ("def f(task, output): return 2.0", 2.0, {}),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_rewards_of_other_trainers_are_called_as_theirs_would(tmp_path, name):
    source, reward, metrics = SIGNATURES[name]
    (tmp_path / "rewards.py").write_text(source)
    score, failure = score_output(
        resolve_reward("rewards.py:f", tmp_path), {"id": "t", "question": "q", "answer": "7"}, "it is 7"
    )
    assert (failure, float(score), dict(score.metrics)) == ("", reward, metrics)


def test_a_chat_is_given_to_rewards_of_trl_as_messages_and_verl_has_its_own_truth(tmp_path):
    (tmp_path / "rewards.py").write_text(
        "def trl(completions, prompts): return [float(completions[0][0]['content'] == 'x' and prompts[0][0]['role'] =="
        " 'user')]\ndef verl(solution_str, ground_truth, data_source, extra_info):\n    return float(ground_truth =="
        " [1] and data_source == 'd' and extra_info['i'] == 2)\ndef several(completions): return [1.0, 2.0]\n"
    )
    task = {
        "messages": [{"role": "user", "content": "q"}],
        "question": "q",
        "answer": "1",
        "data_source": "d",
        "extra_info": {"i": 2},
    }
    task["reward_model"] = {"ground_truth": [1]}
    assert resolve_reward("rewards.py:trl", tmp_path)(task, "x") == 1.0
    assert resolve_reward("rewards.py:verl", tmp_path)(task, "x") == 1.0
    with pytest.raises(RewardError, match="must return a list with a number for each"):
        resolve_reward("rewards.py:several", tmp_path)(task, "x")
