"""`areal-actors check` plays a task of an environment: it prints the reward, and one that does not exist is an
error."""

from __future__ import annotations

import pytest
from support.live_run import ROOT

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SetupError
from areal_actors.recipe.load import load
from areal_actors.run.rehearsal import rehearse

LAKE = "gymnasium:FrozenLake-v1"


def lines_of(tmp_path, environment, python):
    """Lines of the rehearsal of a recipe with this environment."""
    recipe = tmp_path / "environment.toml"
    recipe.write_text(
        f'[task]\nenvironment = "{environment}"\npython = "{python}"\nagent = ""\nreward = ""\nenvironment_tasks = 60\n'
        '[profiles.embedded]\ntask.dataset = ""\n'
    )
    files, settings = (
        [ROOT / "recipes" / "gsm8k_grpo.toml", recipe],
        ["profile=embedded", "task.dataset=", "task.held_out=2"],
    )
    resolved = load(files, [*settings, "evaluation.tasks=2", f"folder={tmp_path}"], CudaDevices(0, "no CUDA device"))
    return list(rehearse(resolved.recipe))


def interpreter_of(library):
    python = ROOT / ".environments" / library / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`just environments {library}` makes the interpreter that this needs")
    return python


def test_check_refuses_an_environment_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\necho 'environment error: NameNotFound: Environment `NoSuch` does not exist.' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(
        SetupError,
        match=r"task\.environment: gymnasium:NoSuch-v0 cannot be used with .*name an id that `gymnasium\.make`",
    ):
        lines_of(tmp_path, "gymnasium:NoSuch-v0", program)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("library", "name"), [("gymnasium", "NoSuch-v0"), ("verifiers", "no_such")])
def test_genuine_interpreters_refuse_environments_that_do_not_exist(tmp_path, monkeypatch, library, name):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SetupError, match=rf"task\.environment: {library}:{name} cannot be used with "):
        lines_of(tmp_path, f"{library}:{name}", interpreter_of(library))


@pytest.mark.slow
def test_check_plays_a_task_and_prints_its_reward(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    own, other = lines_of(tmp_path, LAKE, interpreter_of("gymnasium"))
    assert "with the answer 'Action: " in own
    assert "reward " in own
    assert "with the answer 'I do not know.'" in other
