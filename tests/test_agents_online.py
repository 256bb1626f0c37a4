"""The script that plays episodes from outside a run, as its user starts it."""

from __future__ import annotations

import asyncio
import json
import sys

from support.framework_harness import FINAL, ROOT, opened_chat_gateway
from support.gateway_harness import ADMIN

from areal_actors.messages import CapacityGranted, TrajectoryExported

GROUP_SIZE = 4


async def script(*arguments):
    """Its exit code, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, ROOT / "agents" / "online_script.py", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode, printed.decode()


async def test_every_task_becomes_a_group_of_scored_trajectories(tmp_path):
    tasks = [{"question": "9 times 2?", "answer": "9 * 2 = 18\n#### 18"}, {"question": "9 times 3?", "answer": "27"}]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    async with opened_chat_gateway(GROUP_SIZE) as harness:
        await harness.publish(CapacityGranted(first_group=0, groups=2, weight_version=0))
        harness.script.lines = [FINAL] * 8
        code, printed = await script(harness.manager.gateway.root, ADMIN, tmp_path / "tasks.jsonl")
        assert (code, printed) == (0, "8 episodes, mean reward 0.500\n")
        log = [envelope for envelope in harness.bus._log if envelope.subject == TrajectoryExported.subject]
        exported = [envelope.open(TrajectoryExported).trajectory for envelope in log]
        assert sorted((one.task, one.reward) for one in exported) == [("online-0", 1.0)] * 4 + [("online-1", 0.0)] * 4
        groups = {one.task: {other.group for other in exported if other.task == one.task} for one in exported}
        assert len(groups["online-0"]) == len(groups["online-1"]) == 1
        (emitted,) = {tuple(ids) for ids in harness.script.sampled}
        assert all(tuple(turn.completion.ids_array()) == emitted for one in exported for turn in one.interactions)


async def test_a_wrong_admin_key_is_reported_and_no_episode_is_run(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"question": "9 times 2?", "answer": "18"}')
    async with opened_chat_gateway(GROUP_SIZE) as harness:
        code, printed = await script(harness.manager.gateway.root, "sk-wrong", tmp_path / "tasks.jsonl")
        assert code == 1
        assert "admin key" in printed
        assert not harness.script.prompts
