"""`areal-actors check` opens the data, loads agent and reward, and lets them play a task: what a run would refuse later
is refused here."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from areal_actors.cli import main
from areal_actors.core.devices import detect_cuda
from areal_actors.recipe.load import load
from areal_actors.run.rehearsal import rehearse

AGENT = """
from openai import AsyncOpenAI

async def ask(task, base_url, api_key):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        messages = [{"role": "user", "content": task["question"]}]
        answer = await client.chat.completions.create(model="default", messages=messages)
    return answer.choices[0].message.content

async def run(task, *, base_url, api_key):
    return await ask(task, base_url, api_key)

async def silent(task, *, base_url, api_key):
    return "4"

async def broken(task, *, base_url, api_key):
    return task["qestion"]

async def strict(task, *, base_url, api_key):
    return str(int(await ask(task, base_url, api_key)))

async def needs(task, *, base_url, api_key, database):
    return "4"

def reward(task, output):
    return float(output == task["answer"])

def crashes(task, output):
    return 1 / 0

def text(task, output):
    return "good"

def nothing(task, output):
    pass

def infinite(task, output):
    return float("nan")

def no_output(task):
    return 1.0
"""
RECIPE = """
run   = "mine"
steps = 2
model = "embedded"

[task]
agent   = "agent.py:run"
reward  = "agent.py:reward"
dataset = "tasks.jsonl"
retries = 0
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text(AGENT)
    rows = [json.dumps({"question": f"{number}+0", "answer": str(number)}) for number in range(400)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(capsys, *words):
    """Exit status, standard output and standard error of the check."""
    status = main(["check", "recipe.toml", "--set", "profile=auto", *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_task_is_played_with_its_own_answer_and_with_another(project, capsys):
    status, out, err = checked(capsys)
    assert (status, err) == (0, "")
    lines = out.partition("# ---- Rehearsal")[2].splitlines()[1:]
    assert re.fullmatch(r"# task tasks-(\d+) with the answer '\d+': reward 1, 1 model calls", lines[0])
    assert lines[1].endswith("with the answer 'I do not know.': reward 0, 1 model calls")
    assert sorted(path.name for path in project.iterdir() if path.name != "__pycache__") == [
        "agent.py",
        "recipe.toml",
        "tasks.jsonl",
    ]


def test_an_agent_that_fails_on_one_of_the_answers_is_reported_and_not_refused(project, capsys):
    status, out, _ = checked(capsys, "task.agent=agent.py:strict")
    assert status == 0
    assert ": reward 1, 1 model calls" in out
    assert "with the answer 'I do not know.': failed: agent: " in out
    assert "invalid literal for int()" in out


def test_only_the_settings_are_read_where_that_is_wanted(project, capsys):
    for words in (["--static"], ["--json"], ["--devices", "0"]):
        status, out, err = checked(capsys, "task.agent=agent.py:broken", *words)
        assert (status, err) == (0, "")
        assert "Rehearsal" not in out


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("task.agent=agent.py:broken", "KeyError: 'qestion' at agent.py:"),
        ("task.agent=agent.py:needs", "database"),
        ("task.agent=agent.py:silent", "call"),
        ("task.agent=agent.py:absent", "absent"),
        ("task.reward=agent.py:crashes", "ZeroDivisionError"),
        ("task.reward=agent.py:text", "good"),
        ("task.reward=agent.py:nothing", "None"),
        ("task.reward=agent.py:infinite", "nan"),
        ("task.reward=agent.py:no_output", "must take the task's row and the output"),
        ("task.reward=agent.py:absent", "absent"),
        ("task.reward=json_schema", "schema"),
        ("batcher.filter_function=agent.py:absent", "filter_function"),
    ],
)
def test_what_a_run_would_refuse_is_refused(project, capsys, setting, complaint):
    status, _, err = checked(capsys, setting)
    assert status in {1, 2}
    assert complaint in err


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{", "tasks.jsonl:300"),
        ('["a list"]', "tasks.jsonl:300"),
        ('{"answer": "4"}', "question"),
    ],
)
def test_a_fault_far_down_in_the_data_is_named_with_its_line(project, capsys, row, complaint):
    lines = (project / "tasks.jsonl").read_text().splitlines()
    lines[299] = row
    (project / "tasks.jsonl").write_text("\n".join(lines))
    status, _, err = checked(capsys)
    assert status == 1
    assert complaint in err


def write_answers(project, lengths):
    """Rows whose right answers have these lengths in words, one token each."""
    rows = [
        json.dumps({"question": f"{row} words?", "answer": " ".join(["word"] * length)})
        for row, length in enumerate(lengths)
    ]
    (project / "tasks.jsonl").write_text("\n".join(rows))


def write_tokenizer(folder):
    """A Hugging Face folder without weights, whose tokenizer has a token per word."""
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "<end>": 1, "word": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "chat_template": template}))
    return str(folder)


def rehearsed(limit, model=""):
    """Lines of the rehearsal, with a model of this folder."""
    recipe = load([Path("recipe.toml")], ["profile=auto", f"sampling.max_tokens={limit}"], detect_cuda()).recipe
    return list(rehearse(msgspec.structs.replace(recipe, model=model or recipe.model)))


@pytest.mark.parametrize(
    ("limit", "longer"),
    [(64, "100 of 100 right answers are longer than sampling.max_tokens = 64 (longest 97)"), (97, ""), (200, "")],
)
def test_an_answer_that_the_limit_cuts_is_named_and_counted(project, limit, longer):
    write_answers(project, [97] * 400)
    lines = rehearsed(limit, write_tokenizer(project / "model"))
    reward = (
        "reward 0, 1 model calls; the answer takes 97 tokens, sampling.max_tokens = 64 cuts it"
        if longer
        else "reward 1, 1 model calls"
    )
    assert lines[0].endswith(reward)
    assert lines[2:] == ([longer] if longer else [])


def test_answers_of_mixed_lengths_are_counted(project):
    write_answers(project, [10 + row % 4 for row in range(400)])
    (counted,) = rehearsed(12, write_tokenizer(project / "model"))[2:]
    assert re.fullmatch(r"\d+ of 100 right answers are longer than sampling\.max_tokens = 12 \(longest 13\)", counted)
    assert 10 < int(counted.partition(" ")[0]) < 40


def test_without_the_tokenizer_of_the_model_nothing_is_cut_and_nothing_counted(project):
    write_answers(project, [97] * 400)
    lines = rehearsed(64)
    assert lines[0].endswith("reward 1, 1 model calls")
    assert len(lines) == 2


def test_the_limit_of_a_call_itself_is_named(project):
    write_answers(project, [97] * 400)
    limited = AGENT.replace("messages=messages)", "messages=messages, max_tokens=20)")
    (project / "agent.py").write_text(limited)
    lines = rehearsed(64, write_tokenizer(project / "model"))
    assert lines[0].endswith(
        "reward 0, 1 model calls; the answer takes 97 tokens, the call's own limit or the context cuts it at 20"
    )
    assert rehearsed(64)[0].endswith(
        "cut after 20 bytes by the call's own limit: the tokenizer of the model is not here, and a byte counts as a"
        " token"
    )


def test_too_few_tasks_are_refused_with_the_numbers(project, capsys):
    (project / "tasks.jsonl").write_text(json.dumps({"question": "2+2", "answer": "4"}) + "\n")
    status, _, err = checked(capsys)
    assert status == 2
    assert "200" in err
