"""A reward worker that can start no process for a while, as without file descriptors, is replaced in a live run."""

from __future__ import annotations

import asyncio
import errno
import resource
from contextlib import suppress

import psutil
import pytest

from areal_actors.messages import ActorFailed, ActorStarted, EpisodeAbandoned, StepCompleted
from areal_actors.processes.process import _may_pass
from areal_actors.rewards.judge_host import SpawnFailed
from areal_bus.errors import BusError

QUICK = (
    *(
        "warm_start.steps=1",
        "warm_start.tail_steps=0",
        "evaluation.tasks=0",
        "generation.engine=scripted",
        "sampling.max_tokens=16",
    ),
    "steps=2",
)
PARTS = """
import asyncio, itertools
numbers = itertools.count()

def plain(task, output):
    return float(next(numbers) % 2)

async def judge(task, output):
    await asyncio.sleep(0.01)
    return float(next(numbers) % 2)
"""


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (SpawnFailed("a process for rewards cannot be started"), True),
        (OSError(errno.EMFILE, "Too many open files"), True),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), True),
        (BusError("gone"), True),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (ValueError("no"), False),
    ],
)
def test_a_start_without_descriptors_or_processes_is_not_one_that_fails_again(error, passes):
    assert _may_pass(error) == passes


def take_descriptors(pid):
    """Leave a process as many file descriptors as it has."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        _, hard = process.rlimit(resource.RLIMIT_NOFILE)
        process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds(), hard))


@pytest.mark.long
@pytest.mark.parametrize("function", ["plain", "judge"])
async def test_a_reward_worker_without_descriptors_is_replaced_and_no_score_is_lost(live, tmp_path, function):
    file = tmp_path / "parts.py"
    file.write_text(PARTS)
    run = live(*QUICK, f"task.reward={file}:{function}")
    async with run.listening():
        taken = set()
        while len(run.received(StepCompleted)) < 2 and run.process.poll() is None:
            started = [event.pid for event in run.received(ActorStarted) if event.actor == "reward_worker-0"]
            for pid in started[:2]:
                if pid not in taken:
                    taken.add(pid)
                    take_descriptors(pid)
            await asyncio.sleep(0.005)
    assert await run.ended() == 0, run.output()
    log = [message for _, message in await run.log()]
    failed = [event.reason for event in log if isinstance(event, ActorFailed) and event.actor == "reward_worker-0"]
    assert any("rewards cannot be started: Too many open files" in reason for reason in failed), failed
    assert not [event for event in log if isinstance(event, EpisodeAbandoned) and event.reason == "reward"]
    assert len([event for event in log if isinstance(event, StepCompleted)]) == 2
