from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.paths import beside, expand_home, find_recipe, is_file

NO_CUDA = CudaDevices(0, "no CUDA device")
AGENT = "async def run(task, *, base_url, api_key):\n    return 'x'\n\n\ndef reward(task, output):\n    return 1.0\n"
RECIPE = """
run   = "mine"
steps = 2
model = "embedded"

[task]
agent   = "agent.py:run"
reward  = "agent.py:reward"
dataset = "tasks/*.jsonl"
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a recipe, and beside it the files that the recipe names."""
    folder = tmp_path / "mine"
    (folder / "tasks").mkdir(parents=True)
    (folder / "agent.py").write_text(AGENT)
    (folder / "tasks" / "a.jsonl").write_text('{"question": "1"}\n' * 300)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


def test_files_beside_the_recipe_are_found_from_any_folder(project, tmp_path, monkeypatch):
    for here, agent in (
        (project, "agent.py:run"),
        (tmp_path, "mine/agent.py:run"),
        (tmp_path / "mine/tasks", f"{project}/agent.py:run"),
    ):
        monkeypatch.chdir(here)
        recipe = load([project / "recipe.toml"], [], NO_CUDA).recipe
        assert recipe.task.agent == agent
        assert recipe.task.reward == agent.replace(":run", ":reward")
        assert recipe.folder == "runs"


def test_the_folder_of_the_recipe_comes_first_and_overrides_are_seen_from_here(project, tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    assert load([project / "recipe.toml"], [], NO_CUDA).recipe.task.agent == "mine/agent.py:run"
    assert load([project / "recipe.toml"], ["task.agent=agent.py:run"], NO_CUDA).recipe.task.agent == "agent.py:run"
    (project / "agent.py").rename(project / "other.py")
    assert load([project / "recipe.toml"], [], NO_CUDA).recipe.task.agent == "agent.py:run"
    assert (
        load([project / "recipe.toml"], ["task.reward=other.py:reward"], NO_CUDA).recipe.task.reward
        == "mine/other.py:reward"
    )


def test_a_file_that_is_in_neither_folder_is_refused_with_both(project, monkeypatch, tmp_path):
    (project / "tasks" / "a.jsonl").unlink()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"`task.dataset`: found .*no such file \(looked beside the recipe and in"):
        load([project / "recipe.toml"], [], NO_CUDA)


def test_only_paths_that_exist_beside_the_recipe_are_changed(tmp_path, monkeypatch):
    for name in ("arithmetic", "grpo", "a folder", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "a folder" / "ä b.py").write_text("")
    monkeypatch.chdir(tmp_path.parent)
    here = tmp_path.name
    settings = {
        "dataset": "arithmetic",
        "reward": "model:./model",
        "command": ["node", "a folder/ä b.py"],
        "agent": "a folder/ä b.py:Agent.of",
        "options": {
            "file": str(tmp_path / "model"),
            "prompt": "a/b. " * 1000,
            "odd": "a/\0b",
            "lines": "a/\nb",
            "number": 0.5,
        },
        "folder": "./model",
    }
    assert beside(settings, tmp_path) == settings | {
        "reward": f"model:{here}/model",
        "command": ["node", f"{here}/a folder/ä b.py"],
        "agent": f"{here}/a folder/ä b.py:Agent.of",
    }


def test_a_byte_order_mark_is_no_fault(project):
    text = (project / "recipe.toml").read_text()
    (project / "recipe.toml").write_text(text, encoding="utf-8-sig")
    assert load([project / "recipe.toml"], [], NO_CUDA).recipe.steps == 2


def test_a_recipe_is_a_path_before_it_is_a_name(project, monkeypatch):
    monkeypatch.chdir(project)
    assert find_recipe("gsm8k_grpo").name == "gsm8k_grpo.toml"
    (project / "gsm8k_grpo").write_text(RECIPE)
    assert str(find_recipe("gsm8k_grpo")) == "gsm8k_grpo"


@pytest.mark.parametrize("home", ["~", "$HOME", "${HOME}"])
def test_the_home_folder_begins_any_path_of_a_recipe_and_of_overrides(project, monkeypatch, home):
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.chdir(project.parent)
    text = (
        RECIPE.replace("agent.py:", f"{home}/agent.py:").replace("tasks/*", f"{home}/tasks/*")
        + '\n[gateway]\nhost = "127.0.0.1"\n'
    )
    (project / "recipe.toml").write_text(f'folder = "{home}/runs"\n' + text)
    recipe = load([project / "recipe.toml"], [f"task.should_accept={home}/agent.py:reward"], NO_CUDA).recipe
    assert (recipe.folder, recipe.task.agent, recipe.task.dataset) == (
        f"{project}/runs",
        f"{project}/agent.py:run",
        f"{project}/tasks/*.jsonl",
    )
    assert recipe.task.should_accept == f"{project}/agent.py:reward"


def test_only_the_beginning_of_a_path_is_the_home_folder():
    kept = ["~user/x", "a~", "$HOMES/x", "x/$HOME", "~x", "", "~~"]
    assert expand_home({"a": kept}) == {"a": kept}
    assert expand_home("model:~/x") == f"model:{Path.home()}/x"
    assert expand_home("~") == str(Path.home())


def test_an_override_longer_than_the_name_of_a_file_is_an_override():
    assert not is_file("task.agent_options.text=" + "x" * 5000)
