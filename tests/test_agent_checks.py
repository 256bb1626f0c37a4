from __future__ import annotations

import sys
from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load

RECIPE = """\
run   = "first-run"
steps = 3
model = "embedded"

[task]
dataset = "arithmetic"
reward  = "gsm8k"
{}
[algorithm]
name       = "grpo"
group_size = 4

[generation]
max_model_len = 1024
"""
AGENTS = """
class Solver:
    def __init__(self, depth, *, wide=False):
        pass
    async def run(self, task, *, base_url, api_key):
        return 1

class Simple:
    pass

class Child(Solver):
    pass

class Free:
    def __init__(self, **anything):
        pass

class Debate:
    async def arun_group(self, engines, data):
        return []

async def play(task, *, base_url, api_key):
    return 1
"""
SUBPROCESS = 'runner = "subprocess"\n'


@pytest.fixture
def complaints(tmp_path, monkeypatch):
    """Errors of a recipe whose [task] has these lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(AGENTS)
    (tmp_path / "script.py").write_text("print(1)\n")

    def complaints(task, *overrides):
        (tmp_path / "recipe.toml").write_text(RECIPE.format(task))
        try:
            load([Path("recipe.toml")], overrides, CudaDevices(count=0, reason="none here"))
        except RecipeError as error:
            return str(error)
        return ""

    return complaints


@pytest.mark.parametrize(
    "task",
    [
        'agent = "mine.py:Simple"\n',
        'agent = "mine.py:play"\n',
        'agent = "mine.py:Solver"\nagent_options = { depth = 1, wide = true }\n',
        'agent = "mine.py:Free"\nagent_options = { whatever = 1 }\n',
        'agent = "mine.py:Child"\nagent_options = { depth = 1 }\n',
        'agent = "json:loads"\n',
        'agent = "mine.Simple"\n',
        'agent = "mine.py:Debate"\n',
        f'agent = "mine.py:Simple"\n{SUBPROCESS}python = "{sys.executable}"\nmemory_mb = 500\nprocesses = 2\n',
        f'agent = "somewhere.else:Agent"\n{SUBPROCESS}python = "{sys.executable}"\n',
        f'agent = "script.py"\n{SUBPROCESS}',
        f'command = ["sh", "-c", "echo 1"]\n{SUBPROCESS}',
        'agent = "mine.py:Simple"\nshould_accept = "mine.py:play"\n',
    ],
)
def test_what_fits_is_accepted(complaints, task):
    assert complaints(task) == ""


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        (
            "agent_options = { a = 1 }\n",
            "`task.agent_options`: found options, but the built-in agent has only `system_prompt`",
        ),
        ('agent = "mine.py:Simple"\nsystem_prompt = "Be brief."\n', "`task.system_prompt`: found one beside an agent"),
        (
            'agent = "mine.py:Solver"\n',
            "`task.agent_options`: found no `depth`, which mine.py:Solver requires; write `depth",
        ),
        (
            'agent = "mine.py:Solver"\nagent_options = { depth = 1, wid = 2 }\n',
            "`task.agent_options.wid`: found an option that mine.py:Solver does not take; did you mean `wide`?",
        ),
        ('agent = "mine.py:Simple"\nagent_options = { a = 1 }\n', "`task.agent_options.a`: found an option"),
        (
            'agent = "no_such_kit.solvers:Agent"\n',
            '`task.agent`: found "no_such_kit.solvers:Agent", but no package `no_such_kit` is',
        ),
        ('agent = "script.py"\n', '`task.runner`: found "inline", but a script or command runs'),
        (f'agent = "gone.py"\n{SUBPROCESS}', '`task.agent`: found "gone.py", but there is no such file'),
        (
            f'command = ["no-such-program"]\n{SUBPROCESS}',
            '`task.command`: found "no-such-program", which is not an installed program',
        ),
        (
            f'command = ["sh"]\nagent = "mine.py:Simple"\n{SUBPROCESS}',
            '`task.command`: found one beside `agent = "mine.py:Simple"`; name either',
        ),
        (
            f'command = ["sh"]\nagent_options = {{ a = 1 }}\n{SUBPROCESS}',
            "`task.agent_options`: found options, but a script or command takes none",
        ),
        (
            'agent = "mine.py:Simple"\npython = "env/bin/python"\n',
            '`task.python`: found "env/bin/python", which applies only with `runner = "subprocess"`',
        ),
        (
            'agent = "mine.py:Simple"\nmemory_mb = 5\n',
            '`task.memory_mb`: found 5, which applies only with `runner = "subprocess"`',
        ),
        (
            f'agent = "mine.py:Simple"\n{SUBPROCESS}python = "env/bin/python"\n',
            '`task.python`: found "env/bin/python", but there is no interpreter',
        ),
        (f'agent = "mine.py:Debate"\n{SUBPROCESS}', 'found "subprocess", but mine.py:Debate runs whole groups'),
        (
            'agent = "mine.py:Simple"\nshould_accept = "mine.py:good"\n',
            '`task.should_accept`: found "mine.py:good", but mine.py has no function `good`',
        ),
        ('agent = "mine.py:Simpl"\n', "has no class `Simpl`; did you mean `Simple`?"),
    ],
)
def test_mismatches_are_reported_with_their_remedy(complaints, task, complaint):
    assert complaint in complaints(task)


def test_who_plays_whole_groups_must_meet_all_members(complaints):
    task = 'agent = "mine.py:Debate"\n'
    assert "`actors.rollout_worker.count`: found 2, but mine.py:Debate runs whole groups" in complaints(
        task, "actors.rollout_worker.count=2"
    )
    assert "runs whole groups of 4; write at least 4" in complaints(task, "actors.rollout_worker.concurrency=3")
