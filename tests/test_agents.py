"""The agents that need nothing but a client, each in a whole conversation with the gateway."""

from __future__ import annotations

import json
import random
import sys

import pytest
from support.framework_harness import FINAL, ROOT, agent_here, assert_extends, call, opened_chat_gateway

from areal_actors.core.loading import load_named


async def test_a_wrong_answer_is_sent_back_until_it_is_right():
    async with opened_chat_gateway() as harness, agent_here("agents/multi_turn.py:MultiTurnAgent") as (run, module):
        answer, trajectory = await harness.play(run, ["#### 17", "#### 1,800", FINAL, "never said"])
        assert answer == FINAL
        assert len(trajectory.interactions) == 3
        assert_extends(harness, trajectory)
        assert harness.prompt_text(2).count(module.TRY_AGAIN) == 2


async def test_an_answer_that_is_never_right_ends_with_the_last_one():
    async with opened_chat_gateway() as harness, agent_here("agents/multi_turn.py:MultiTurnAgent") as (run, module):
        answer, trajectory = await harness.play(run, ["", "no number", "#### 17", "#### -18"])
        assert answer == "#### -18"
        assert len(trajectory.interactions) == module.TURNS
        assert_extends(harness, trajectory)


async def test_tools_are_called_until_an_answer_comes_without_one():
    script = [
        call("calculate", '{"expression": "9 * (1 + 1)"}'),
        "So far: 18.\n"
        + call("run_python", json.dumps({"code": "print(9 * 2)"}))
        + "\n"
        + call("calculate", '{"expression": "x"}'),
        FINAL,
    ]
    async with opened_chat_gateway() as harness, agent_here("agents/python_tools.py:PythonToolsAgent") as (run, _):
        answer, trajectory = await harness.play(run, script)
        assert answer == FINAL
        assert len(trajectory.interactions) == 3
        assert_extends(harness, trajectory)
        assert "<tool_response>\n18\n</tool_response>" in harness.prompt_text(1)
        tool_responses = (
            "<tool_response>\n18\n\n</tool_response>\n<tool_response>\nerror: write numbers, + - * / and brackets"
            " only\n</tool_response>"
        )
        assert tool_responses in harness.prompt_text(2)


async def test_an_endless_conversation_is_an_empty_answer():
    async with opened_chat_gateway() as harness, agent_here("agents/python_tools.py:PythonToolsAgent") as (run, module):
        answer, trajectory = await harness.play(run, [call("calculate", '{"expression": "1"}')] * 10)
        assert answer == ""
        assert len(trajectory.interactions) == module.TURNS


async def test_the_search_agent_finds_in_two_searches_where_a_builder_was_born():
    row = next(row for row in rows("encyclopedia.jsonl") if "live on" in row["question"])
    builder, birthplace = path_through_the_encyclopedia(row["question"])
    script = [
        call("search", json.dumps({"query": row["question"]})),
        call("search", json.dumps({"query": builder})),
        call("search", json.dumps({"query": birthplace})),
        f"It lives on {row['answer']}.\nAnswer: {row['answer'].title()}.",
    ]
    async with opened_chat_gateway() as harness, agent_here("agents/search.py:SearchAgent") as (run, module):
        answer, trajectory = await harness.play(run, script, **row)
        assert len(trajectory.interactions) == 4
        assert_extends(harness, trajectory)
        assert f"built by {builder}." in harness.prompt_text(1)
        assert f"{builder}: a builder, born in {birthplace}" in harness.prompt_text(2)
        assert f"{birthplace}: a town that lives on {row['answer']}." in harness.prompt_text(3)
        assert module.reward(row, answer) == 1.0


async def test_the_countdown_agent_asks_once():
    async with opened_chat_gateway() as harness, agent_here("agents/countdown.py:CountdownAgent") as (run, module):
        row = rows("countdown.jsonl")[0]
        answer, trajectory = await harness.play(run, [f"Let me see. <answer>{row['answer']}</answer>"], **row)
        assert len(trajectory.interactions) == 1
        assert module.reward(row, answer) == 1.0
        assert row["question"] in harness.prompt_text(0)


@pytest.mark.parametrize(
    ("first", "result", "score"),
    [("1", "won", 1.0), ("2", "lost", 0.1), ("4", "no move", 0.0), ("none", "no move", 0.0)],
)
async def test_the_game_of_nuts_is_won_by_the_last_one(first, result, score):
    async with opened_chat_gateway() as harness, agent_here("agents/nim.py:NimAgent") as (run, module):
        row = next(row for row in module.tasks() if row["heap"] == 4)
        left = 3 - random.Random(row["question"]).randint(1, 2)
        answer, trajectory = await harness.play(run, [f"#### {first}", f"I take {left}."], **row)
        assert answer == result
        assert len(trajectory.interactions) == (2 if result == "won" else 1)
        assert module.reward(row, answer) == score
        assert "4 nuts are left." in harness.prompt_text(0)


async def test_an_mcp_server_s_tool_stands_beside_a_function():
    pytest.importorskip("mcp")
    script = [
        call("calculate", '{"expression": "9 * 2"}') + "\n" + call("percentage", '{"part": 9, "whole": 18}'),
        FINAL,
    ]
    async with opened_chat_gateway() as harness, agent_here("agents/mcp_tools.py:McpToolsAgent") as (run, _):
        answer, trajectory = await harness.play(run, script)
        assert answer == FINAL
        assert len(trajectory.interactions) == 2
        assert_extends(harness, trajectory)
        assert "<tool_response>\n18\n</tool_response>\n<tool_response>\n50.0\n</tool_response>" in harness.prompt_text(
            1
        )


async def test_the_anthropic_sdk_runs_its_own_loop_of_tools():
    async with (
        opened_chat_gateway() as harness,
        agent_here("agents/anthropic_tools.py:AnthropicToolsAgent") as (run, _),
    ):
        answer, trajectory = await harness.play(run, [call("calculate", '{"expression": "9 * 2"}'), FINAL])
        assert answer == FINAL
        assert len(trajectory.interactions) == 2
        assert_extends(harness, trajectory)
        assert "<tool_response>\n18\n</tool_response>" in harness.prompt_text(1)


def rows(name):
    return [json.loads(line) for line in (ROOT / "agents" / "tasks" / name).read_text().splitlines()]


def path_through_the_encyclopedia(question):
    """The builder that a question is about, and the town of that builder's birth."""
    articles = dict(
        line.split(": ", 1) for line in (ROOT / "agents" / "tasks" / "encyclopedia.txt").read_text().splitlines()
    )
    town = next(name for name in articles if f" of {name} " in question)
    builder = articles[town].rpartition("built by ")[2].rstrip(".")
    return builder, articles[builder].partition("born in ")[2].partition(" ")[0]


USES_OUR_SANDBOX = {"coding_agent.py", "mcp_tools.py", "python_tools.py"}
LONGEST = {"coding_agent.py": 200}
"""Lines of an agent that is longer than a page: this one has the settings of a program, its reward and its tasks beside
it."""


@pytest.mark.parametrize("agent", sorted(path.name for path in (ROOT / "agents").glob("*.py")))
def test_an_agent_is_no_longer_than_a_page_and_imports_at_most_our_client(agent):
    text = (ROOT / "agents" / agent).read_text()
    assert len(text.splitlines()) <= LONGEST.get(agent, 120)
    assert "areal_actors" not in text.replace("areal_actors.client", "") or agent in USES_OUR_SANDBOX


def test_some_agents_show_the_sdk_of_openai():
    shown = [path for path in (ROOT / "agents").rglob("*.py") if "from openai import AsyncOpenAI" in path.read_text()]
    assert len(shown) >= 3


def test_loading_an_agent_changes_no_module_path():
    before = list(sys.path)
    load_named("agents/search.py:SearchAgent", ROOT)
    assert sys.path == before
