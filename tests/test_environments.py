"""Environments named by a recipe: their settings are checked, and their tasks are listed by another interpreter."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.environments import HOSTS
from areal_actors.core.errors import AgentError, RecipeError, SetupError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import plan
from areal_actors.rollout.agent_runner import AgentResult, parse_result
from areal_actors.rollout.runners import program_of
from areal_actors.tasks import environment_tasks
from areal_actors.tasks.datasets import open_listed
from areal_actors.tasks.environment_tasks import list_environment

ROOT = Path(__file__).parent.parent
NO_CUDA = CudaDevices(0, "no CUDA device: libcuda.so.1 not found")
PROBLEMS = ROOT / "agents" / "word_problems.py"
FILES = [ROOT / "recipes" / "gsm8k_grpo.toml", ROOT / "recipes" / "verifiers.toml"]


@pytest.fixture
def read(monkeypatch, tmp_path):
    """The recipe with these settings, in a folder in which the environment's interpreter is this one."""
    (tmp_path / ".environments" / "verifiers" / "bin").mkdir(parents=True)
    (tmp_path / ".environments" / "verifiers" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    return lambda *settings: load(FILES, settings, NO_CUDA).recipe


# ------------------------------------------------------------ settings


def test_an_environment_has_no_reward_worker_and_runs_in_processes(read):
    recipe = read()
    assert recipe.plays_environment()
    assert recipe.task.runner == "subprocess"
    assert recipe.actors.reward_worker.count == 0
    assert recipe.actors.rollout_worker.count == 1
    assert any(f"of verifiers:{PROBLEMS}" in line for line in map(str, plan(recipe)))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            ["task.environment=gym:CartPole"],
            'found "gym:CartPole"; write `verifiers:NAME` of a package, or `verifiers:PATH`',
        ),
        (["task.environment=gymnasium:"], "or `gymnasium:ENV_ID`, or `gymnasium:PATH.py:ENV_ID`"),
        (
            ["task.environment=gymnasium:Taxi-v4", "task.python="],
            "`gymnasium` is not installed here; run `just environments gymnasium`",
        ),
        (["task.environment=verifiers:"], 'found "verifiers:"; write `verifiers:NAME`'),
        (
            ["task.dataset=arithmetic"],
            '`task.dataset`: found "arithmetic", but the environment brings its tasks; leave it out, or write ""',
        ),
        (["task.reward=gsm8k"], '`task.reward`: found "gsm8k", but the environment brings its rewards; leave it out'),
        (["task.agent=agents/gsm8k.py:Gsm8kAgent"], "but the environment brings its agents; leave it out"),
        (
            ["task.runner=inline"],
            '`task.runner`: found "inline", but an environment runs in processes of its own; leave it out',
        ),
        (
            ["task.python="],
            "`task.python`: found none, and `verifiers` is not installed here; run `just environments verifiers`",
        ),
        (["task.python=nowhere/python"], 'found "nowhere/python", but there is no interpreter'),
        (["task.held_out=rows.jsonl"], "but held-out tasks come from the environment; write their number"),
        (["task.held_out=10"], "found 50, but task.held_out keeps only 10"),
        (["gateway.store_false=train"], "calls of agents that an environment does not train have `store: false`"),
        (["actors.reward_worker.count=1"], "actors.reward_worker"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_write(read, settings, complaint):
    with pytest.raises(RecipeError) as caught:
        read(*settings)
    assert complaint in str(caught.value)


def test_settings_of_an_environment_need_one(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(
        RecipeError, match=r"`task.environment_args`: found a table, which applies only with `environment ="
    ):
        load(FILES[:1], ["task.environment_args={ id = 'best-of-n' }"], NO_CUDA)


def test_its_agent_gets_the_environment_and_where_rewards_go(read):
    program = program_of(read().task, ROOT)
    assert (program.agent, program.name()) == (HOSTS["verifiers"].agent, f"verifiers:{PROBLEMS}")
    assert program.options == {
        "environment": str(PROBLEMS),
        "args": {"agent": {"harness": {"id": "areal-chat"}}},
        "rewards_last_call": False,
    }
    assert program_of(read("task.turn_discount=0.9").task, ROOT).options["rewards_last_call"] is True


# ------------------------------------------------------------ tasks


def interpreter(folder, body):
    """A program in the place of Python, which gets the request on its standard input."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\nrequest = json.load(sys.stdin)\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return TaskSettings(environment="verifiers:shop", environment_tasks=30, python=str(path), held_out=0)


ROWS = """
rows = [
    {"key": str(n % 20), "question": f"task {n}", "task": {"n": n}, "args": request["args"]}
    for n in range(request["limit"])
]
pathlib.Path(request["path"]).write_text("".join(json.dumps(row) + "\\n" for row in rows))
"""


def test_tasks_are_listed_once_and_drawn_like_those_of_a_dataset(tmp_path):
    settings = interpreter(tmp_path, ROWS)
    list_environment(settings, tmp_path / "tasks", tmp_path)
    dataset = open_listed(tmp_path / "tasks", settings.environment, seed=3, held_out=5)
    assert len(dataset.held_out) == 5
    held = {task.data["key"] for task in dataset.held_out.rows}
    assert held.isdisjoint(task.data["key"] for task in dataset.train.rows)
    assert dataset.train.task(0).id.startswith("shop-")
    again = open_listed(tmp_path / "tasks", settings.environment, seed=3, held_out=5)
    assert [again.train.task(n) for n in range(60)] == [dataset.train.task(n) for n in range(60)]


def test_held_out_tasks_may_come_from_the_environment_with_other_settings(tmp_path):
    args = {"taskset": {"split": "train", "size": 3}, "id": "best-of-n"}
    held_out = {"held_out": 4, "held_out_args": {"taskset": {"split": "test"}}}
    settings = TaskSettings(**{**json_of(interpreter(tmp_path, ROWS)), "environment_args": args, **held_out})
    list_environment(settings, tmp_path / "tasks", tmp_path)
    dataset = open_listed(tmp_path / "tasks", settings.environment, seed=0, held_out=4)
    assert [task.data["args"] for task in dataset.held_out.rows] == [
        {"taskset": {"split": "test", "size": 3}, "id": "best-of-n"}
    ] * 4
    assert dataset.train.task(0).data["args"] == args
    assert dataset.held_out.task(0).id.startswith("shop-test-")
    with pytest.raises(RecipeError, match=r"`task.held_out`: found 5, but verifiers:shop has 4 tasks for evaluation"):
        open_listed(tmp_path / "tasks", settings.environment, seed=0, held_out=5)


def json_of(settings):
    return {name: getattr(settings, name) for name in ("environment", "environment_tasks", "python")}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            "sys.exit('environment error: ValueError: two\\nlines')",
            r"verifiers:shop cannot be used with .*python: ValueError: two\nlines",
        ),
        ("print('debug', file=sys.stderr); sys.exit('environment error: KeyError: 3')", r"with .*python: KeyError: 3$"),
        (
            "import verifiers_of_nobody",
            r"No module named 'verifiers_of_nobody'; create its interpreter with `just environments verifiers`",
        ),
        (
            "sys.exit(\"environment error: ModuleNotFoundError: taskset 'shop' not found\")",
            r"not found; install the environment's package",
        ),
        ("sys.exit(3)", r"it ended without a message"),
        ("pathlib.Path(request['path']).touch()", r"verifiers:shop has no tasks; check the settings of its taskset"),
    ],
)
def test_an_environment_that_lists_no_tasks_is_an_error_with_its_reason(tmp_path, body, complaint):
    with pytest.raises(SetupError, match=complaint):
        list_environment(interpreter(tmp_path, body), tmp_path / "tasks", tmp_path)


def test_an_environment_that_hangs_is_killed_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(environment_tasks, "LIST_SECONDS", 0.5)
    settings = interpreter(tmp_path, "import time; time.sleep(3600)")
    with pytest.raises(SetupError, match=r"verifiers:shop did not list its tasks within 0.5 s"):
        list_environment(settings, tmp_path / "tasks", tmp_path)


def test_an_interpreter_without_verifiers_is_an_error_with_the_remedy(tmp_path):
    settings = TaskSettings(environment="verifiers:shop", python=sys.executable, held_out=0)
    with pytest.raises(
        SetupError, match=r"ModuleNotFoundError: No module named 'verifiers'; create its interpreter with `just env"
    ):
        list_environment(settings, tmp_path / "tasks", tmp_path)


# ------------------------------------------------------------ results


def test_an_agent_may_report_metrics_beside_its_rewards():
    assert parse_result("a", {"reward": 1, "metrics": {"turns": 2}}) == AgentResult(reward=1.0, metrics={"turns": 2.0})
    assert parse_result("a", {"rewards": {"i-1": 1}, "metrics": {}}) == AgentResult(rewards={"i-1": 1.0})
    assert parse_result("a", {"metrics": 3}) == AgentResult(rewards={"metrics": 3.0})


@pytest.mark.parametrize(
    "returned",
    [
        {"metrics": {"turns": 2}},
        {"reward": 1, "rewards": {}, "metrics": {}},
        {"reward": {"i-1": 1}, "metrics": {}},
        {"rewards": 1, "metrics": {}},
        {"reward": 1, "metrics": {"turns": float("nan")}},
        {"reward": 1, "metrics": {"turns": "two"}},
    ],
)
def test_metrics_that_are_no_numbers_or_stand_alone_are_refused(returned):
    with pytest.raises(AgentError, match="agent a returned"):
        parse_result("a", returned)


def test_a_listed_task_survives_the_bus(tmp_path):
    settings = interpreter(tmp_path, ROWS)
    list_environment(settings, tmp_path / "tasks", tmp_path)
    task = open_listed(tmp_path / "tasks", settings.environment, seed=0, held_out=0).train.task(0)
    assert json.loads(json.dumps(task.data))["task"] == task.data["task"]
