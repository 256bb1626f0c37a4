"""Programs that an agent or a reward leaves running end with the run."""

import sys

import psutil
import pytest

pytestmark = pytest.mark.slow

REWARD = """
import subprocess, sys

PROGRAM = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    time.sleep(3000)  # {mark}"

def reward(task, output):
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    return 1.0
"""


def left(mark):
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(mark in word for word in process.info["cmdline"] or ())
    ]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="environments of other processes are read on Linux")
async def test_a_daemon_that_a_reward_starts_ends_with_the_run(live, tmp_path):
    file = tmp_path / "daemon_reward.py"
    file.write_text(REWARD.format(mark=tmp_path.name))
    run = live(
        *(
            "warm_start.steps=1",
            "warm_start.tail_steps=0",
            "evaluation.tasks=0",
            "generation.engine=scripted",
            "sampling.max_tokens=20",
        ),
        *("steps=1", "algorithm.group_size=2", "trainer.batch_size=1", f"task.reward={file}:reward"),
    )
    assert await run.ended() == 0, run.output()
    assert left(f"# {tmp_path.name}") == []
    assert "had left running" in run.output()
