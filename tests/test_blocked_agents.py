"""Agents that block their event loop, in a real system: nothing is abandoned, nothing is run twice, and the line is
named."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from blocked_loop import documented_agent, measure

SLEEPING = """
import time
from openai import AsyncOpenAI
from areal_actors.library.workflow import workflow_context

class Agent:
    async def run(self, task, *, base_url, api_key):
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
        if workflow_context.get().episode == "1.0":
            time.sleep(7)
        messages = [{"role": "user", "content": task["question"]}]
        answer = await client.chat.completions.create(model="default", messages=messages)
        return answer.choices[0].message.content
"""
LINE = SLEEPING.splitlines().index("            time.sleep(7)") + 1


@pytest.fixture
def sleeping_agent(tmp_path):
    (tmp_path / "agent.py").write_text(SLEEPING)
    return f"{tmp_path / 'agent.py'}:Agent"


def nothing_failed(figures):
    return (figures["abandoned"], figures["run_twice"], figures["lost"]) == (0, 0, 0)


async def test_the_example_of_the_documentation_runs_each_episode_once(tmp_path):
    figures = await measure("example", documented_agent(tmp_path), 32, 1, tmp_path)
    assert nothing_failed(figures), json.dumps(figures)
    assert figures["exported"] >= 64


@pytest.mark.long
async def test_an_agent_that_sleeps_longer_than_the_lease_costs_no_attempt_and_is_named(tmp_path, sleeping_agent):
    figures = await measure("blocking", sleeping_agent, 32, 1, tmp_path)
    assert nothing_failed(figures), json.dumps(figures)
    assert figures["blocked"].get(f"agent.py:{LINE}", 0.0) > 5.0, figures
    await asyncio.sleep(0)
