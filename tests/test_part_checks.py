"""Checks of parts: found in their folders, asked for what they name, and reported in the order of the recipe."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from support.live_run import ROOT

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.core.own_modules import PACKAGE, own_modules
from areal_actors.core.run_facts import RunFacts
from areal_actors.recipe.checks import problems
from areal_actors.recipe.load import load
from areal_actors.recipe.part_checks import part_checks
from areal_actors.recipe.plan import explain
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.shown_settings import shown_settings
from areal_actors.training.algorithms import Algorithm

CHECKS = {check.name: check for check in part_checks()}
TABLES = get_type_hints(Recipe)
USUAL = {"run": "usual", "steps": 1, "model": "embedded", "task": {"dataset": "arithmetic", "reward": "gsm8k"}}
FAULTS = {
    "run": "faults",
    "steps": 1,
    "model": "embedded",
    "seed": -1,
    "task": {"dataset": "no such", "reward": "gsm8k"},
    "sampling": {"top_p": 0.0, "max_tokens": 32},
    "gateway": {"tool_format": "no such"},
    "bus": {"url": "http://host"},
    "track": {"to": ["no such"]},
    "chaos": {"enabled": True},
}


def test_every_folder_with_a_check_is_asked():
    files = {path for path in PACKAGE.rglob("*.py") if path.name == "recipe_check.py"}
    assert {Path(module.__file__) for module in own_modules("recipe_check")} == files
    assert len(files) >= 12
    names = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in files}
    assert {f"areal_actors.{name}" for name in names} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_asks_for_what_a_recipe_has(name):
    functions = (CHECKS[name].find_problems, CHECKS[name].unused_settings)
    hints = {key: kind for function in functions if function for key, kind in get_type_hints(function).items()}
    hints.pop("return")
    for parameter, kind in hints.items():
        if parameter == "facts":
            assert kind is RunFacts
        elif parameter == "recipe":
            assert issubclass(Recipe, kind)
        else:
            expected = Algorithm if parameter == "algorithm" else TABLES[parameter]
            assert kind in (expected, object), parameter  # an object: of a part that this one may not import


def test_problems_of_several_parts_are_in_the_order_of_the_recipe():
    keys = [".".join(problem.key) for problem in problems(msgspec.convert(FAULTS, Recipe))]
    assert keys == [
        "seed",
        "task.dataset",
        "sampling.top_p",
        "gateway.tool_format",
        "bus.url",
        "track.to",
        "chaos.enabled",
    ]


def test_nothing_names_the_module_of_a_check():
    """Except tests: what a check shares with others lies elsewhere."""
    importing = [
        f"{path.relative_to(PACKAGE)}: {node.module}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").endswith((".recipe_check", ".engine_description"))
        and not (node.module or "").startswith(".".join(("areal_actors", *path.relative_to(PACKAGE).parent.parts)))
    ]
    assert importing == []


FILES = sorted(path for path in (ROOT / "recipes").glob("*.toml"))


def loaded(file, cuda):
    """A recipe, over the main one if it is no whole recipe; none if it is for other machines."""
    for files in ([file], [ROOT / "recipes/gsm8k_grpo.toml", file]):
        with suppress(RecipeError):
            return load(files, [], CudaDevices(count=cuda, reason=""))
    return None


@pytest.mark.parametrize("cuda", [0, 1])
def test_what_is_shown_is_the_same_recipe_when_read_again(cuda, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    resolved = {file.stem: found for file in FILES if (found := loaded(file, cuda))}
    assert len(resolved) > 20
    for name, found in resolved.items():
        written = tmp_path / f"{name}.toml"
        written.write_text(explain(found))
        assert load([written], [], found.cuda).recipe == found.recipe, name
        assert shown_settings(found.recipe, found.cuda)[1], name


def test_a_setting_that_is_stated_or_used_is_shown():
    def shown(devices=0, **changes):
        tables, left_out = shown_settings(msgspec.convert({**USUAL, **changes}, Recipe), CudaDevices(devices, ""))
        return tables, {".".join(key) for key in left_out}

    tables, left_out = shown()
    assert {"chaos", "hosts", "autoscale", "track", "generation.server", "actors.example_source"} <= left_out
    assert not {"chaos", "hosts", "autoscale", "track"} & tables.keys()
    tables, left_out = shown(chaos={"after_steps": 3}, generation={"engine": "vllm"})
    assert tables["chaos"]["after_steps"] == 3, "without effect, but stated"
    assert {"chaos", "generation.server"}.isdisjoint(left_out)
    assert {"generation.start_check", "generation.scripted"} <= left_out
    devices = {"trainer.devices", "trainer.memory_fraction", "generation.devices", "generation.memory_fraction"}
    assert {*devices, "generation.sleep", "gateway.advertise", "gateway.default_consent"} <= left_out
    assert devices.isdisjoint(shown(devices=8)[1])
    assert "gateway.advertise" not in shown(bus={"host": "10.0.0.1"})[1]
    assert "trainer.devices" not in shown(trainer={"devices": [0]})[1]
    tables, left_out = shown(task={"dataset": "arithmetic"}, algorithm={"name": "sft"})
    assert {"gateway", "sampling", "batcher", "staleness_gate", "generation"} <= left_out
    assert "max_length" in tables["task"]
