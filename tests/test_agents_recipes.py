"""Every recipe and overlay in the repository can be run on both kinds of machine."""

from __future__ import annotations

import subprocess

import pytest
from support.framework_harness import ROOT

from areal_actors.core.devices import CudaDevices
from areal_actors.recipe.load import load
from areal_actors.stages.stage_file import has_stages

OVER_TOOLS = ("anthropic", "camel", "langgraph", "mcp_tools", "openai_agents")
RECIPES = {path.stem: path.read_text() for path in (ROOT / "recipes").glob("*.toml") if not has_stages(path)}
OVER_MAIN = {
    name for name, text in RECIPES.items() if f"`areal-actors run recipes/gsm8k_grpo.toml recipes/{name}.toml" in text
}
"""Those of algorithms, which tests/test_algorithms_recipes.py reads, and of larger models, which tests/test_devices.py
reads."""
OF_ONE_MODEL = "smollm2"
"""A recipe for one model on any machine; its profiles are chosen by name."""
OF_A_MADE_MODEL = "vision"
"""A recipe whose model a program beside it makes; tests/test_vision_recipe.py reads it."""
ALONE = sorted(RECIPES.keys() - set(OVER_TOOLS) - OVER_MAIN - {OF_ONE_MODEL, OF_A_MADE_MODEL})


def loaded(names, devices, monkeypatch):
    monkeypatch.chdir(ROOT)
    files = [ROOT / "recipes" / f"{name}.toml" for name in names]
    from_the_hub = any("openai/gsm8k" in file.read_text() for file in files)
    overrides = ["task.dataset=arithmetic"] if from_the_hub else []
    if any("model:runs/" in file.read_text() for file in files):
        overrides += ["task.reward=model:somebody/reward-model"]  # another recipe makes the one that is named
    return load(files, overrides, devices)


@pytest.mark.parametrize("devices", [CudaDevices(0, "none"), CudaDevices(1, "one")])
@pytest.mark.parametrize("name", ALONE)
def test_a_recipe_has_all_settings_that_a_run_needs(name, devices, monkeypatch):
    resolved = loaded([name], devices, monkeypatch)
    assert resolved.profile == ("cuda" if devices.count else "embedded")


@pytest.mark.parametrize("profile", ["", "extraction", "gsm8k"])
def test_the_recipe_of_a_genuine_model_states_what_such_a_model_needs(profile, monkeypatch):
    monkeypatch.chdir(ROOT)
    overrides = [f"profile={profile or 'auto'}", *(["task.dataset=arithmetic"] if profile == "gsm8k" else [])]
    recipe = load([ROOT / "recipes" / f"{OF_ONE_MODEL}.toml"], overrides, CudaDevices(0, "none")).recipe
    assert recipe.run == f"smollm2{'-' if profile else ''}{profile}"
    assert recipe.model.endswith("smollm2")
    assert 1e-5 <= recipe.trainer.optimizer.lr <= 3e-5
    assert recipe.generation.max_model_len <= 640, "slots and time limits follow from the machine"


@pytest.mark.parametrize("name", OVER_TOOLS)
def test_an_overlay_changes_the_agent_and_nothing_else_that_is_learned(name, monkeypatch):
    environment = ROOT / ".environments" / {"camel": "camel"}.get(name, "frameworks")
    if name in {"camel", "langgraph", "openai_agents"} and not environment.exists():
        pytest.skip(f"`just environments {environment.name}` makes the interpreter that this needs")
    base = loaded(["tools"], CudaDevices(0, "none"), monkeypatch).recipe
    over = loaded(["tools", name], CudaDevices(0, "none"), monkeypatch).recipe
    assert over.task.agent != base.task.agent
    assert over.run != base.run
    assert (over.task.dataset, over.task.reward, over.sampling, over.algorithm) == (
        base.task.dataset,
        base.task.reward,
        base.sampling,
        base.algorithm,
    )


def test_an_undefined_environment_is_refused_by_name():
    refused = subprocess.run(
        [ROOT / "scripts" / "environments.sh", "langchain"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    known = (
        "camel crewai frameworks gymnasium harbor launchers litellm openenv tinker trackers verifiers-rubrics verifiers"
        " sglang vllm codex docs sbom"
    )
    assert refused.stderr == f"environments: there is no environment langchain; known: {known}\n"
    assert not (ROOT / ".environments" / "langchain").exists()


@pytest.mark.parametrize(
    "requirements", sorted((ROOT / "agents" / "environments").glob("*.txt")), ids=lambda path: path.stem
)
def test_an_environment_pins_what_it_names(requirements):
    lines = [line for line in requirements.read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(lines)
    assert all("==" in line for line in lines)
    ours = (ROOT / "scripts" / "locks" / "dev.txt").read_text().splitlines()
    assert {line for line in lines if line.startswith("torch==")} <= {line.removesuffix(" \\") for line in ours}
