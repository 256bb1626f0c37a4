from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from support.clock import jumping_time

from areal_actors.core.errors import AgentError, RecipeError
from areal_actors.core.values import Task
from areal_actors.rollout.agent_runner import AgentResult, parse_result
from areal_actors.rollout.inline_runner import InlineRunner

TASK = Task(id="t", data={"question": "why?"})


def runner(tmp_path, body, head="async def run(self, task, *, base_url, api_key):"):
    (tmp_path / "mine.py").write_text(f"import asyncio, sys\nclass Agent:\n    {head}\n        {body}\n")
    return InlineRunner.from_name("mine.py:Agent", tmp_path)


async def result(tmp_path, body, **options):
    return await runner(tmp_path, body, **options).run(TASK, base_url="http://here/v1", api_key="sk-1")


async def test_an_agent_gets_the_task_and_the_address_and_returns_text(tmp_path):
    assert await result(tmp_path, "return f\"{task['question']} {base_url} {api_key}\"") == AgentResult(
        output="why? http://here/v1 sk-1"
    )


async def test_an_agent_may_be_an_ordinary_function_that_blocks_no_other(tmp_path):
    blocking = runner(
        tmp_path, "return float(task['gate'].wait(300))", head="def run(self, task, *, base_url, api_key):"
    )
    gate = threading.Event()
    running = asyncio.create_task(blocking.run(Task(id="t", data={"gate": gate}), base_url="u", api_key="k"))
    await asyncio.sleep(0)
    assert not running.done()
    gate.set()
    assert await running == AgentResult(reward=1.0)


async def test_agents_in_threads_run_concurrently_and_a_hanging_one_delays_no_other(tmp_path):
    plain = runner(tmp_path, "task['gate'].wait(); return 1", head="def run(self, task, *, base_url, api_key):")
    shut, opened = threading.Event(), threading.Event()
    opened.set()

    def episode(gate):
        return plain.run(Task(id="t", data={"gate": gate}), base_url="u", api_key="k")

    hanging = [asyncio.create_task(episode(shut)) for _ in range(50)]
    async with asyncio.timeout(300):
        assert await asyncio.gather(*(episode(opened) for _ in range(50))) == [AgentResult(reward=1.0)] * 50
    assert not any(one.done() for one in hanging)
    for one in hanging:
        one.cancel()
    assert all(
        isinstance(error, asyncio.CancelledError) for error in await asyncio.gather(*hanging, return_exceptions=True)
    )
    shut.set()


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
    hanging = runner(tmp_path, "task['begun'].set(); await asyncio.sleep(100)")
    begun = asyncio.Event()
    running = asyncio.create_task(hanging.run(Task(id="t", data={"begun": begun}), base_url="u", api_key="k"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_deadline_reaches_a_hanging_agent(tmp_path):
    with jumping_time(), pytest.raises(TimeoutError):
        async with asyncio.timeout(300):
            await result(tmp_path, "await asyncio.sleep(1000)")


KINDS = """
class Agent:
    def __init__(self, depth, *, wide=False):
        self.depth, self.wide = depth, wide
    async def run(self, task, *, base_url, api_key):
        return f"{self.depth} {self.wide} {task['question']}"

class Extra:
    async def run(self, data, **extra_kwargs):
        return f"{extra_kwargs['base_url']} {extra_kwargs['api_key']}"

class Broken:
    def __init__(self):
        raise ValueError("no luck")

class NoRun:
    pass

class OtherRun:
    async def run(self, task):
        return 1

class OtherEpisode:
    async def arun_episode(self, engine):
        return 1

async def play(task, *, base_url, api_key, depth=0):
    return f"{task['question']} {base_url} {depth}"

def plain(task, base_url, api_key):
    return api_key

def plain_but_awaitable(task, base_url, api_key):
    return play(task, base_url=base_url, api_key=api_key)

def other(task):
    return 1

made = Agent(3, wide=True)
number = 3
"""


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("Agent", {"depth": 1}, "1 False why?"),
        ("Agent", {"depth": 1, "wide": True}, "1 True why?"),
        ("Extra", {}, "u k"),
        ("play", {}, "why? u 0"),
        ("play", {"depth": 2}, "why? u 2"),
        ("plain", {}, "k"),
        ("plain_but_awaitable", {}, "why? u 0"),
        ("made", {}, "3 True why?"),
    ],
)
async def test_an_agent_is_a_class_a_function_or_an_object(tmp_path, name, options, expected):
    (tmp_path / "kinds.py").write_text(KINDS)
    made = InlineRunner.from_name(f"kinds.py:{name}", tmp_path, options)
    await made.start()
    assert await made.run(TASK, base_url="u", api_key="k") == AgentResult(output=expected)
    await made.close()


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("NoRun", {}, "agent kinds.py:NoRun has no method `run`; write `async def run"),
        ("number", {}, "agent kinds.py:number has no method `run`"),
        (
            "Agent",
            {},
            (
                r"agent kinds.py:Agent takes \(depth, .*\): missing a required argument: 'depth'; give .* in"
                r" \[task.agent_options\]"
            ),
        ),
        ("Agent", {"depth": 1, "deep": 2}, "got an unexpected keyword argument 'deep'"),
        ("Broken", {}, "agent kinds.py:Broken: making one raised ValueError: no luck at kinds.py:14"),
        (
            "OtherRun",
            {},
            r"agent kinds.py:OtherRun: `run` takes \(task\): .*; it is called with \(task, base_url=…, api_key=…\)",
        ),
        (
            "OtherEpisode",
            {},
            r"`arun_episode` takes \(engine\): too many positional arguments; it is called with \(engine, data\)",
        ),
        ("other", {}, r"agent kinds.py:other takes \(task\): .* it is called with \(task, base_url=…, api_key=…\)"),
        ("play", {"width": 1}, "got an unexpected keyword argument 'width'"),
        ("made", {"depth": 1}, "agent kinds.py:made is an instance and takes no options; name its class"),
    ],
)
def test_what_is_no_agent_is_refused_at_once(tmp_path, name, options, complaint):
    (tmp_path / "kinds.py").write_text(KINDS)
    with pytest.raises(AgentError, match=complaint):
        InlineRunner.from_name(f"kinds.py:{name}", tmp_path, options)


def test_a_missing_agent_is_reported_by_name(tmp_path):
    (tmp_path / "kinds.py").write_text(KINDS)
    with pytest.raises(RecipeError, match="has no `Agnet`; did you mean `Agent`"):
        InlineRunner.from_name("kinds.py:Agnet", tmp_path)


async def test_the_repr_of_a_value_cannot_break_the_worker(tmp_path):
    body = "return type('Odd', (), {'__float__': lambda self: 1 / 0, '__repr__': lambda self: 1 / 0})()"
    with pytest.raises(AgentError, match=r"agent mine.py:Agent raised ZeroDivisionError"):
        await result(tmp_path, body)


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
        (Decimal("0.5"), AgentResult(reward=0.5)),
        ({"a": 1, "b": np.int64(2)}, AgentResult(rewards={"a": 1.0, "b": 2.0})),
    ],
)
def test_what_an_agent_may_return(returned, expected):
    assert parse_result("agent", returned) == expected


def test_a_complaint_about_a_huge_return_value_is_short():
    with pytest.raises(AgentError) as caught:
        parse_result("agent", ["x" * 1_000_000])
    assert len(str(caught.value)) < 500


def test_text_too_long_to_travel_is_an_agent_error():
    with pytest.raises(AgentError, match="1,000,001 characters; return at most 1,000,000"):
        parse_result("agent", "x" * 1_000_001)
    assert parse_result("agent", "x" * 1_000_000).output is not None
