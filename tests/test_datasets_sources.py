"""Tasks from shards, parquet files, saved datasets and the hub; what is wrong in them is named before anything
starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.tasks.datasets import open_dataset
from areal_actors.tasks.sources import is_on_disk, is_on_hub, needs_library

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def made(first, stop):
    return [
        {"question": f"What is {number}?", "answer": f"#### {number}", "level": number} for number in range(first, stop)
    ]


def jsonl(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(rows):
    return datasets.Dataset.from_list(rows)


def parquet(path, rows):
    path.parent.mkdir(exist_ok=True)
    table(rows).to_parquet(path)
    return path


def questions(tasks):
    return [task.data["question"] for task in tasks.rows]


ALL = [row["question"] for row in made(0, 12)]


@pytest.mark.parametrize("write", [jsonl, parquet])
@pytest.mark.parametrize("spec", ["shards", "shards/part-*{ending}", "shards/*"])
def test_a_folder_of_shards_or_a_pattern_is_one_dataset_in_the_order_of_the_names(tmp_path, write, spec):
    ending = f".{write.__name__}"
    for name, first, stop in (("part-2", 9, 12), ("part-0", 0, 4), ("part-1", 4, 9)):
        write(tmp_path / "shards" / f"{name}{ending}", made(first, stop))
    (tmp_path / "shards" / "README.md").write_text("no rows")
    train = open_dataset(f"{tmp_path}/{spec.format(ending=ending)}", seed=0, held_out=0).train
    assert questions(train) == ALL
    assert train.rows[7].data == {"id": "shards-7", "question": "What is 7?", "answer": "#### 7", "level": 7}
    assert sorted(train.task(n).data["level"] for n in range(12)) == list(range(12))


def test_the_same_rows_give_the_same_draws_wherever_they_lie(tmp_path):
    jsonl(tmp_path / "shards" / "a.jsonl", made(0, 5))
    jsonl(tmp_path / "shards" / "b.jsonl", made(5, 12))
    table(made(0, 12)).save_to_disk(tmp_path / "saved")
    specs = [
        "shards",
        "saved",
        jsonl(tmp_path / "one.jsonl", made(0, 12)).name,
        parquet(tmp_path / "two.parquet", made(0, 12)).name,
    ]
    opened = [open_dataset(str(tmp_path / spec), seed=4, held_out=3) for spec in specs]
    drawn = [[dataset.train.task(n).data["question"] for n in range(20)] for dataset in opened]
    assert drawn[1:] == drawn[:1] * 3
    assert all(questions(dataset.held_out) == questions(opened[0].held_out) for dataset in opened)
    assert len(drawn[0]) == 20 > len(set(drawn[0])) == 9


def test_what_is_held_out_of_a_saved_dataset_is_the_beginning_of_its_test_split(tmp_path):
    splits = {"train": table(made(0, 9)), "test": table([*made(9, 12), *made(0, 1)])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "mine")
    dataset = open_dataset(str(tmp_path / "mine"), seed=0, held_out=4)
    assert [task.id for task in dataset.held_out.rows] == [f"mine-test-{number}" for number in range(4)]
    assert questions(dataset.train) == ALL[1:9], "what is also held out is not trained on"
    with pytest.raises(RecipeError, match=r"found 5, but .*mine has 4 tasks for evaluation"):
        open_dataset(str(tmp_path / "mine"), seed=0, held_out=5)


def test_fields_that_are_called_otherwise_are_named_in_the_recipe(tmp_path):
    rows = [
        {"problem": row["question"], "solution": row["answer"], "question": "a field of the same name", "level": 1}
        for row in made(0, 6)
    ]
    columns = {"question": "problem", "answer": "solution"}
    for path in (jsonl(tmp_path / "rows.jsonl", rows), parquet(tmp_path / "rows.parquet", rows)):
        dataset = open_dataset(str(path), seed=0, held_out=2, columns=columns)
        data = dataset.held_out.rows[0].data
        assert data == {
            "id": data["id"],
            "question": f"What is {data['id'][5:]}?",
            "answer": f"#### {data['id'][5:]}",
            "level": 1,
        }
        assert open_dataset(str(path), seed=0, held_out=2).recognised == "answer = `solution`"


@pytest.mark.parametrize("write", [jsonl, parquet])
@pytest.mark.parametrize(("bad", "complaint"), [("", "got ''"), (None, "got None"), ("  ", "got '  '")])
def test_a_wrong_row_is_named_by_file_and_number(tmp_path, write, bad, complaint):
    rows = [*made(0, 3), {**made(3, 4)[0], "answer": bad}, *made(4, 6)]
    write(tmp_path / "shards" / f"a.{write.__name__}", made(6, 9))
    path = write(tmp_path / "shards" / f"b.{write.__name__}", rows)
    place = rf"{path}:4: " if write is jsonl else rf"{path}, row 3: "
    with pytest.raises(SetupError, match=place + rf"`answer` must be a non-empty text, {complaint}"):
        open_dataset(str(tmp_path / "shards"), seed=0, held_out=0)


def test_a_line_ends_at_the_newline_and_not_at_other_separators(tmp_path):
    row = {"question": "one\u2028two\x85three", "answer": "#### 1"}
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "\r\n" + json.dumps(row, ensure_ascii=False) + "\r\n\r\n" + json.dumps(made(7, 8)[0]),
        encoding="utf-8",
        newline="",
    )
    assert questions(open_dataset(str(path), seed=0, held_out=0).train) == ["one\u2028two\x85three", "What is 7?"]


def test_a_file_that_changes_while_it_is_in_use_is_noticed(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", made(0, 5))
    train = open_dataset(str(path), seed=0, held_out=0).train
    jsonl(path, made(1, 6))
    os.utime(path, ns=(1, 1))
    with pytest.raises(SetupError, match=r"rows.jsonl: the file was changed while it was in use"):
        train.task(0)
    path.unlink()
    with pytest.raises(
        SetupError, match=r"rows.jsonl: can no longer be read: No such file or directory; restore the file"
    ):
        train.task(0)


def test_what_is_no_dataset_is_refused_with_what_to_write(tmp_path):
    jsonl(tmp_path / "both" / "a.jsonl", made(0, 2))
    parquet(tmp_path / "both" / "b.parquet", made(0, 2))
    (tmp_path / "none").mkdir()
    (tmp_path / "broken.parquet").write_text("no parquet")
    (tmp_path / "notes.txt").write_text("no rows")
    for name, complaint in (
        ("both", r"both: found files of two kinds \(.jsonl and .parquet\); name one kind"),
        ("none", r"none: no .jsonl or .parquet or .+ file found \(looked in"),
        ("none/*.jsonl", r"none/\*.jsonl: no .jsonl or .parquet or .+ file found"),
        ("broken.parquet", r"broken.parquet: cannot be read as parquet"),
        (
            "missing.parquet",
            r"missing.parquet: cannot be read: No such file or directory; name an existing .parquet file",
        ),
    ):
        with pytest.raises(SetupError, match=complaint):
            open_dataset(str(tmp_path / name), seed=0)
    with pytest.raises(
        RecipeError, match=r"`task.dataset`: there is no dataset `.*notes.txt`; write `arithmetic`, `owner/name` on"
    ):
        open_dataset(str(tmp_path / "notes.txt"), seed=0)


def test_a_name_determines_the_source_of_a_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "mine" / "a.jsonl", made(0, 2))
    parquet(tmp_path / "tables" / "a.parquet", made(0, 2))
    specs = (
        "openai/gsm8k",
        "owner/name.v2:part-1",
        "mine",
        "rows.jsonl",
        "tables",
        "data/*.parquet",
        "gsm8k",
        "a/b/c",
        "~/rows",
        "a/b.py:c",
    )
    assert [spec for spec in specs if is_on_hub(spec)] == ["openai/gsm8k", "owner/name.v2:part-1"]
    assert [spec for spec in specs if is_on_disk(spec)] == ["mine", "rows.jsonl", "tables", "data/*.parquet", "~/rows"]
    assert [spec for spec in specs[:6] if needs_library(spec)] == ["openai/gsm8k", "owner/name.v2:part-1", "tables"]


@pytest.fixture
def hub(monkeypatch):
    """The hub, out of reach of tests, with one dataset of these splits."""

    def put(**splits):
        asked = []

        def load_dataset(name, config, split):
            asked.append((name, config, split))
            return table(splits[split])

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name, config: list(splits))
        return asked

    return put


def test_gsm8k_comes_from_the_hub_with_its_own_splits(hub):
    asked = hub(train=made(0, 9), test=made(9, 18))
    dataset = open_dataset("openai/gsm8k", seed=0, held_out=4)
    assert asked == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    assert dataset.train.rows[0].data == {"id": "gsm8k-train-0", **made(0, 1)[0]}
    assert [task.id for task in dataset.held_out.rows] == [f"gsm8k-test-{n}" for n in range(4)]
    with pytest.raises(RecipeError, match=r"found 10, but openai/gsm8k has 9 tasks for evaluation"):
        open_dataset("openai/gsm8k", seed=0, held_out=10)


def test_a_dataset_of_the_hub_without_a_test_split_gives_rows_of_its_own_away(hub):
    asked = hub(train=made(0, 12))
    dataset = open_dataset("owner/sums:easy", seed=0, held_out=2)
    assert asked == [("owner/sums", "easy", "train")]
    assert sorted(questions(dataset.train) + questions(dataset.held_out)) == sorted(ALL)
    hub(validation=made(0, 3), train=made(3, 12))
    assert questions(open_dataset("owner/sums", seed=0, held_out=2).held_out) == ALL[:2]


def test_an_unreachable_hub_is_an_error_with_a_remedy(monkeypatch):
    def out_of_reach(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", out_of_reach)
    monkeypatch.setattr(datasets, "get_dataset_split_names", out_of_reach)
    remedy = "task.dataset=PATH names a .jsonl file .* and profile=embedded trains on generated problems"
    with pytest.raises(
        SetupError,
        match=rf"openai/gsm8k cannot be loaded \(ConnectionError: no route\); check the connection.*{remedy}",
    ):
        open_dataset("openai/gsm8k", seed=0)
    with pytest.raises(
        SetupError, match=r"owner/sums cannot be loaded \(ConnectionError: no route\); check the connection"
    ):
        open_dataset("owner/sums", seed=0)


def test_no_source_loads_torch(tmp_path):
    path = parquet(tmp_path / "rows.parquet", made(0, 3))
    program = (
        "import sys; from areal_actors.tasks.datasets import open_dataset\n"
        f"open_dataset({str(path)!r}, seed=0, held_out=1).train.task(0); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split()[-1] == "False"


OWN = """
def rows():
    return [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(6)]

def splits():
    return {"train": rows(), "test": [{"question": "0 + 0?", "answer": "0"}]}

def incomplete():
    return [{"question": "q"}]

def lazy():
    yield from rows()

def named():
    return {"training": rows()}

def fails():
    return 1 / 0
"""


def test_rows_without_answers_are_a_dataset_where_the_reward_needs_none(tmp_path):
    bare, mixed, broken = (
        ({"question": f"Riddle {n}?", "clue": n} for n in range(6)),
        [{"question": "a", "answer": "b"}, {"question": "c"}],
        "{",
    )
    files = {"bare": "\n".join(map(json.dumps, bare)), "mixed": "\n".join(map(json.dumps, mixed)), "broken": broken}
    for name, text in files.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    dataset = open_dataset(str(tmp_path / "bare.jsonl"), seed=0, held_out=2, answers=False)
    assert (len(dataset.train), len(dataset.held_out)) == (4, 2)
    assert "answer" not in dataset.train.task(0).data
    for name, found in {
        "bare": "jsonl:1: `answer` is missing",
        "mixed": "jsonl:2: `answer` is missing",
        "broken": "jsonl:1: not JSON",
    }.items():
        with pytest.raises(SetupError, match=found):
            open_dataset(str(tmp_path / f"{name}.jsonl"), seed=0, held_out=0, answers=name == "bare")


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("own")
def test_rows_of_a_function_are_a_dataset():
    dataset = open_dataset("own.py:rows", seed=1, held_out=2)
    assert (len(dataset.train), len(dataset.held_out)) == (4, 2)
    assert set(questions(dataset.train)).isdisjoint(questions(dataset.held_out))
    assert dataset.train.rows[0].id.startswith("rows-")
    assert questions(open_dataset("own.py:splits", seed=1, held_out=1).held_out) == ["0 + 0?"]
    assert not is_on_disk("own.py:rows")
    assert not is_on_hub("own.py:rows")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("incomplete", r"own.py:incomplete, row 0: `answer` is missing"),
        ("lazy", r"own.py:lazy: expected a list of rows, .* got generator"),
        ("named", r"own.py:named: expected the splits `train` and, if there is one, `test`; got 'training'"),
        ("fails", r"own.py:fails: raised ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_is_wrong_with_the_rows_of_a_function_is_reported(name, complaint):
    with pytest.raises(SetupError, match=complaint):
        open_dataset(f"own.py:{name}", seed=1, held_out=0)


@pytest.mark.usefixtures("own")
def test_a_function_that_is_not_there_is_reported():
    with pytest.raises(RecipeError, match="has no `row`; did you mean `rows`"):
        open_dataset("own.py:row", seed=1)
