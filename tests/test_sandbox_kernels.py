"""The sandbox on kernels with fewer features, and a live run in which one program of ten tries to get out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.forged_programs import FORGERIES
from support.live_run import ROOT

from areal_actors.messages import StepCompleted, TrajectoryExported
from areal_actors.rewards import describe_reward, resolve_reward
from areal_actors.sandbox.protection import landlock_version

FILES = {"writes outside", "writes far outside", "reads outside", "looks around", "links to what it may not read"}
"""Deeds that Landlock alone denies."""
WITHOUT_LANDLOCK = """
import ctypes, json, struct, sys
sys.path.insert(0, "tests")
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
code = [(LOAD, 0, 0, 0)]
for number in (444, 445, 446):
    code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, 0x00050000 | 38)]
code += [(RETURN, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
system = ctypes.CDLL(None, use_errno=True)
assert system.prctl(38, 1, 0, 0, 0) == 0
pointer = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program)), 16)
assert system.prctl(22, 2, pointer, 0, 0) == 0
from test_rewards_code import FORBIDDEN_DEEDS
from areal_actors.rewards import describe_reward, resolve_reward
from areal_actors.sandbox import Limits, run_program
done = {deed: run_program(text + "\\nprint('done')", limits=Limits()) for deed, text in FORBIDDEN_DEEDS.items()}
allowed = [deed for deed, ran in done.items() if b"done" in ran.output]
print(json.dumps([allowed, describe_reward(resolve_reward("python_tests"))]))
"""
CODE = """
from areal_actors.library.workflow import workflow_context

RIGHT = "def add(a, b):\\n    return a + b"
WRONG = "def add(a, b):\\n    return a - b"

class Agent:
    def __init__(self, escapes):
        self.escapes = escapes

    async def run(self, task, *, base_url, api_key):
        from openai import AsyncOpenAI
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "add"}])
        group, _, member = workflow_context.get().episode.partition(".")
        if int(member) == 9:
            return "```python\\n" + self.escapes[int(group) % len(self.escapes)] + "\\n```"
        return "```python\\n" + (RIGHT if int(member) % 2 else WRONG) + "\\n```"
"""
ESCAPES = (
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)",
    "import fcntl, os\n_, w = os.pipe()\nfcntl.fcntl(w, 8, os.getppid())\nfcntl.fcntl(w, 4, 8192)\nos.write(w, b'0')",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass",
    "import ctypes\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nwhile True: pass",
    "x = bytearray(4 << 30)",
)


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock to take away")
def test_without_landlock_a_program_reaches_files_and_nothing_else_and_check_prints_that():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    reached, sentences = json.loads(done.stdout.splitlines()[-1])
    assert set(reached) <= FILES, reached
    assert "reads outside" in reached, "Landlock was taken away"
    assert "no Landlock" in sentences[0]


def test_check_prints_what_programs_still_can_do():
    sentences = describe_reward(
        resolve_reward("weighted", options={"python_tests": {"weight": 1.0}, "gsm8k": {"weight": 1.0}})
    )
    assert len(sentences) == 2
    assert "what they still can do" in sentences[0] or "run" in sentences[0]
    assert "assert f(x)" in sentences[1]


def test_a_reward_of_the_user_is_not_asked_whatever_its_methods_are():
    class Own:
        def __call__(self, task, output):
            return 1.0

        def describe(self, row):
            raise AssertionError(row)

    assert describe_reward(Own()) == []


@pytest.mark.long
async def test_a_run_takes_every_step_while_one_program_of_ten_tries_to_get_out(live, tmp_path):
    tasks = [
        {
            "id": f"add-{index}",
            "question": "add",
            "answer": "a sum",
            "tests": ["assert add(1, 2) == 3", f"assert add({index}, 1) == {index + 1}"],
        }
        for index in range(40)
    ]
    data, file = tmp_path / "add.jsonl", tmp_path / "agent.py"
    data.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    file.write_text(CODE)
    forgeries = [program for program, _ in FORGERIES.values()]
    run = live(
        *(
            "warm_start.steps=1",
            "warm_start.tail_steps=0",
            "evaluation.tasks=0",
            "generation.engine=scripted",
            "sampling.max_tokens=20",
        ),
        *(
            "steps=5",
            "algorithm.group_size=10",
            "trainer.batch_size=2",
            "staleness_gate.max_concurrent=4",
            "task.held_out=0",
        ),
        *(f"task.dataset={data}", "task.reward=python_tests", f"task.agent={file}:Agent"),
        f"task.agent_options={{escapes={json.dumps([*ESCAPES, *forgeries[:5]])}}}",
    )
    assert await run.ended() == 0, run.output()
    log = [message for _, message in await run.log()]
    assert len([event for event in log if isinstance(event, StepCompleted)]) == 5
    made = [event.trajectory for event in log if isinstance(event, TrajectoryExported)]
    rewards = {int(trajectory.episode.partition(".")[2]): set() for trajectory in made}
    for trajectory in made:
        rewards[int(trajectory.episode.partition(".")[2])].add(trajectory.reward)
    assert rewards == {member: {float(member % 2 and member != 9)} for member in range(10)}
    assert "process died" not in run.output()
