"""A run that cannot start ends with one sentence, before its first process or at the first repetition, and without a
traceback."""

from __future__ import annotations

import pytest

from areal_actors.messages import ActorFailed

pytestmark = pytest.mark.long

USERS_CODE = """
class Raises:
    def __init__(self):
        raise ValueError("no key in the environment")
    async def run(self, task, *, base_url, api_key):
        return 1.0

class Signature:
    async def run(self, task):
        return 1.0

class Engine:
    def __init__(self, folder, settings):
        raise OSError("no such device: /dev/accelerator0")

def reward(task):
    return 1.0
"""

BEFORE = {
    "agent's file": (("task.agent=agents/missing.py:Agent",), 2, "there is no file agents/missing.py"),
    "agent's name": (("task.agent={file}:Nobody",), 2, "has no class `Nobody`"),
    "agent's constructor in a process": (
        ("task.agent={file}:Raises", "task.runner=subprocess"),
        1,
        "no key in the environment",
    ),
    "device of the trainer": (("trainer.device=cuda:99",), 2, '`trainer.device`: found "cuda:99", expected one of'),
    "device of the engine": (
        ("generation.device=cuda:99",),
        2,
        '`generation.device`: found "cuda:99", expected one of',
    ),
    "dataset": (("task.dataset=/nowhere/tasks.jsonl",), 2, "there is no such file"),
    "reward": (("task.reward=nosuch",), 2, '`task.reward`: found "nosuch"'),
    "reward's signature": (("task.reward={file}:reward",), 2, "must take the task's row and the output"),
    "model": (("model=/nowhere/model",), 2, "there is no such folder"),
}
AT_START = {
    "agent's signature": (("task.agent={file}:Signature",), "rollout_worker", "`run` takes (task)"),
    "agent's constructor": (("task.agent={file}:Raises",), "rollout_worker", "no key in the environment"),
    "engine's constructor": (
        ("generation.engine={file}:Engine",),
        "inference_worker",
        "no such device: /dev/accelerator0",
    ),
}


@pytest.fixture
def begun(live, tmp_path):
    """A run with code of the user's that cannot be started."""
    file = tmp_path / "users_code.py"
    file.write_text(USERS_CODE)
    return lambda settings: live(
        "steps=2", "evaluation.tasks=0", "warm_start.steps=1", *(one.replace("{file}", str(file)) for one in settings)
    )


@pytest.mark.parametrize("name", BEFORE)
async def test_what_is_wrong_is_named_before_anything_starts(begun, name):
    settings, status, words = BEFORE[name]
    run = begun(settings)
    assert await run.ended() == status, run.output()
    assert words in run.output()
    assert "Traceback" not in run.output()
    assert not run.folder.exists(), "nothing was started"


@pytest.mark.parametrize("name", AT_START)
async def test_a_failure_at_the_start_ends_the_run_when_it_is_repeated(begun, name):
    settings, process, words = AT_START[name]
    run = begun(settings)
    assert await run.ended() == 1, run.output()
    assert f"ended early: {process} failed twice at its start for the same reason: " in run.output()
    assert words in run.output().splitlines()[-1] or words in run.output().splitlines()[-2]
    assert "Traceback" not in run.output()
    failures = [event for _, event in await run.log() if isinstance(event, ActorFailed) and event.process == process]
    assert len(failures) == 2
    assert run.processes_left() == []
