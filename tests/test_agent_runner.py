from __future__ import annotations

import asyncio
from fractions import Fraction

import numpy as np
import pytest

from areal_actors.agent_runner import AgentResult, InlineRunner, understood
from areal_actors.errors import AgentError
from areal_actors.values import Task

TASK = Task(id="t", data={"question": "why?"})


def runner(tmp_path, body, head="async def run(self, task, *, base_url, api_key):"):
    (tmp_path / "mine.py").write_text(f"import asyncio, sys\nclass Agent:\n    {head}\n        {body}\n")
    return InlineRunner("mine.py:Agent", tmp_path)


async def result(tmp_path, body, **options):
    return await runner(tmp_path, body, **options).run(TASK, base_url="http://here/v1", api_key="sk-1")


async def test_an_agent_gets_the_task_and_the_address_and_returns_text(tmp_path):
    assert await result(tmp_path, "return f\"{task['question']} {base_url} {api_key}\"") == AgentResult(output="why? http://here/v1 sk-1")


async def test_an_agent_may_be_an_ordinary_function_and_then_blocks_nobody(tmp_path):
    blocking = "import time; time.sleep(0.05); return 1"
    running = asyncio.create_task(result(tmp_path, blocking, head="def run(self, task, *, base_url, api_key):"))
    await asyncio.sleep(0.005)
    assert not running.done()
    assert await running == AgentResult(reward=1.0)


async def test_an_agent_cannot_change_the_task_of_the_next_attempt(tmp_path):
    await result(tmp_path, "task.clear(); return 1")
    assert TASK.data == {"question": "why?"}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("raise ValueError('no way')", r"agent mine.py:Agent raised ValueError: no way at mine.py:4"),
        ("return 1 / 0", "ZeroDivisionError: division by zero at mine.py:4"),
        ("sys.exit(1)", "SystemExit: 1 at mine.py:4"),
        ("raise TimeoutError", "TimeoutError:  at mine.py:4"),
        ("raise asyncio.CancelledError", "CancelledError:  at mine.py:4"),
        ("raise ValueError('first\\nsecond')", "ValueError: first at"),
        ("raise ValueError('\\ud800')", r"ValueError: \? at"),
        ("return object()", "returned <object object at .*: a reward must be a real number"),
        ("return float('nan')", "returned nan: a reward must be finite"),
        ("return [1.0]", r"returned \[1.0\]: a reward must be a real number"),
        ("return {'a': None}", "a reward must be a real number, got None"),
    ],
)
async def test_whatever_goes_wrong_in_an_agent_is_an_error_with_its_name(tmp_path, body, complaint):
    with pytest.raises(AgentError, match=complaint) as caught:
        await result(tmp_path, body)
    str(caught.value).encode()


async def test_cancelling_an_agent_is_no_error_of_its_own(tmp_path):
    running = asyncio.create_task(result(tmp_path, "await asyncio.sleep(100)"))
    await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_deadline_reaches_a_hanging_agent(tmp_path):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await result(tmp_path, "await asyncio.sleep(100)")


def test_an_agent_without_run_is_refused_at_once(tmp_path):
    (tmp_path / "mine.py").write_text("class Agent:\n    pass\n")
    with pytest.raises(AgentError, match="has no method `run`; write `async def run"):
        InlineRunner("mine.py:Agent", tmp_path)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, AgentResult()),
        ("", AgentResult(output="")),
        ("cut \ud83d", AgentResult(output="cut ?")),
        (1, AgentResult(reward=1.0)),
        (True, AgentResult(reward=1.0)),
        (np.float32(0.5), AgentResult(reward=0.5)),
        (Fraction(1, 4), AgentResult(reward=0.25)),
        ({"a": 1, "b": np.int64(2)}, AgentResult(rewards={"a": 1.0, "b": 2.0})),
    ],
)
def test_what_an_agent_may_return(returned, expected):
    assert understood("agent", returned) == expected


def test_a_complaint_about_a_huge_return_value_is_short():
    with pytest.raises(AgentError) as caught:
        understood("agent", ["x" * 1_000_000])
    assert len(str(caught.value)) < 500


def test_text_too_long_to_travel_is_an_agent_error():
    with pytest.raises(AgentError, match="1,000,001 characters; return at most 1,000,000"):
        understood("agent", "x" * 1_000_001)
    assert understood("agent", "x" * 1_000_000).output is not None
