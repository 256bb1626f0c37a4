"""The recipe that remote workers get: its files, their limit, and settings of one host."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_joined_files import RECIPES, recipe

from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.hosts.client_recipe import recipe_here
from areal_actors.hosts.portable_recipe import PortableRecipe


def test_the_recipe_names_files_below_one_folder_and_has_no_secrets(tmp_path: Path) -> None:
    outside, root = tmp_path / "elsewhere", tmp_path / "project"
    for folder in (outside, root / "agents" / ".hidden", root / "rewards"):
        folder.mkdir(parents=True)
    (root / "agents" / "mine.py").write_text("")
    (root / "agents" / "tools.py").write_text("")
    (root / "agents" / "notes.txt").write_text("")
    (root / "agents" / ".hidden" / "x.py").write_text("")
    (root / "rewards" / "__init__.py").write_text("")
    (outside / "engine.py").write_text("")
    (outside / "judge").mkdir()
    (outside / "judge" / "config.json").write_text("{}")
    found = recipe("gateway.admin_key=secret")
    task = msgspec.structs.replace(
        found.task,
        agent="agents/mine.py:Agent",
        reward=f"model:{outside / 'judge'}",
        should_accept="rewards.checks:accept",
        agent_options={"style": "agents/notes.txt", "url": "https://example.org/a.b"},
    )
    generation = msgspec.structs.replace(found.generation, engine=f"{outside / 'engine.py'}:Engine")
    portable = PortableRecipe(msgspec.structs.replace(found, task=task, generation=generation), root)
    made = portable.recipe
    assert made["task"]["agent"] == "agents/mine.py:Agent"
    assert made["task"]["agent_options"]["url"] == "https://example.org/a.b"
    assert made["generation"]["engine"].startswith("outside/")
    assert made["generation"]["engine"].endswith("/engine.py:Engine")
    judge = made["task"]["reward"].removeprefix("model:")
    assert judge.startswith("outside/")
    engine_file = made["generation"]["engine"].removesuffix(":Engine")
    expected = {
        "agents/mine.py",
        "agents/tools.py",
        "agents/notes.txt",
        "rewards/__init__.py",
        engine_file,
        f"{judge}/config.json",
    }
    assert set(portable.files) == expected
    assert str(tmp_path) not in msgspec.json.encode(made).decode()
    assert "secret" not in msgspec.json.encode(made).decode()
    assert recipe_here(made, []).task.agent == task.agent


def test_the_files_of_an_agent_have_a_limit(tmp_path: Path) -> None:
    for number in range(2001):
        (tmp_path / f"m{number}.py").write_text("")
    found = recipe()
    with pytest.raises(SetupError, match="2,001 files"):
        PortableRecipe(
            msgspec.structs.replace(found, task=msgspec.structs.replace(found.task, agent="m1.py:Agent")), tmp_path
        )


def test_settings_of_one_host_are_those_of_placement_and_speed() -> None:
    made = PortableRecipe(recipe(), RECIPES.parent).recipe
    assert recipe_here(made, ["generation.threads=3"]).generation.threads == 3
    for setting in ("steps=3", "generations=3", "task.reward=math"):
        with pytest.raises(RecipeError, match="may differ"):
            recipe_here(made, [setting])
