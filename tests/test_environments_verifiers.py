"""Genuine verifiers, in its own interpreter: one turn, tools, several agents, and every way in which an environment
fails."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.environment_harness import CHAT, OURS, PUBLIC, listed, playing, settings
from support.framework_harness import assert_extends, call, parents, prefixes

from areal_actors.core.errors import AgentError, SetupError

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

LOOKUP = call("shop_price", '{"item": "apple"}')
NULL = {"agent": {"harness": {"id": "null"}}}
DUEL = {seat: {"harness": {"id": "areal-chat"}} for seat in ("first", "second", "judge")}


async def test_one_turn_is_scored_by_the_environment_and_reports_its_metrics(tmp_path):
    task = settings("agents/word_problems.py", environment_args=CHAT, environment_tasks=4)
    tasks = listed(task, tmp_path)
    assert [one.id for one in tasks] == [f"word_problems-{number}" for number in range(4)]
    right = tasks[0].data["task"]["answer"]
    async with playing(task) as harness:
        result, trajectory = await harness.play_task(tasks[0], [f"1+1=2\n#### {right}"])
        assert (result.reward, result.metrics) == (1.0, {"correct": 1.0, "shows_work": 1.0})
        assert (trajectory.reward, trajectory.metrics) == (1.0, result.metrics)
        assert tasks[0].data["question"] in harness.prompt_text(0)
        result, _ = await harness.play_task(tasks[0], [f"{right}0"])
        assert (result.reward, result.metrics) == (0.0, {"correct": 0.0, "shows_work": 0.0})


@pytest.mark.parametrize("harness_args", [CHAT, NULL], ids=["areal-chat", "null"])
async def test_a_tool_is_called_and_the_second_prompt_extends_the_first_to_the_token(harness_args, tmp_path):
    task = settings(f"{OURS}/price_lookup.py", environment_args=harness_args)
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        result, trajectory = await harness.play_task(tasks[0], [LOOKUP, "It costs 3 cents."])
        assert (result.reward, result.metrics) == (2.0, {"right_price": 1.0, "tool_results": 1.0})
        assert_extends(harness, trajectory)
        assert "<tool_response>\n3\n</tool_response>" in harness.prompt_text(1)


async def test_a_call_of_an_unknown_tool_is_answered_with_the_mistake_and_a_malformed_one_is_the_answer(tmp_path):
    task = settings(f"{OURS}/price_lookup.py", environment_args=CHAT)
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        result, trajectory = await harness.play_task(tasks[0], [call("no_such_tool", "{}"), "I do not know."])
        assert (result.reward, result.metrics["tool_results"]) == (0.0, 1.0)
        assert_extends(harness, trajectory)
        assert "error: there is no tool 'no_such_tool'; known: shop_price" in harness.prompt_text(1)
        result, trajectory = await harness.play_task(tasks[0], [call("shop_price", '"apple"'), "It costs 3 cents."])
        assert (result.reward, result.metrics["tool_results"], len(trajectory.interactions)) == (0.0, 0.0, 1)


async def test_each_agent_of_an_episode_has_its_own_reward_and_an_untrained_one_none(tmp_path):
    task = settings(f"{OURS}/number_duel.py", environment_args=DUEL, environment_tasks=3)
    tasks = listed(task, tmp_path)
    assert [one.data["task"]["info"] for one in tasks] == [{"target": 1}, {"target": 2}, {"target": 3}]
    async with playing(task) as harness:
        lines = ["one", "two", "three", "four", "fine"]
        result, trajectory = await harness.play_task(tasks[2], lines)
        turns = trajectory.interactions
        assert [turn.trained for turn in turns] == [True] * 4 + [False]
        assert [turn.reward for turn in turns] == [1.0, -1.0, 1.0, -1.0, None]
        assert parents(trajectory) == prefixes(trajectory) == [-1, -1, 0, 1, -1]
        assert result.metrics == {"first/payoff": 1.0, "second/payoff": -1.0}
        assert "Name a number near 3." in harness.prompt_text(0)
        assert "The duel ended with four." in harness.prompt_text(4)


async def test_with_a_discount_an_agents_reward_is_that_of_its_last_call(tmp_path):
    task = settings(f"{OURS}/number_duel.py", environment_args=DUEL, environment_tasks=1, turn_discount=0.5)
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        _, trajectory = await harness.play_task(tasks[0], ["one", "two", "three", "four", "fine"])
        assert [turn.reward for turn in trajectory.interactions] == [None, None, 1.0, -1.0, None]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"taskset": {"task": {"fails": "reward"}}}, r"EpisodeFailed: TaskError: .*ZeroDivisionError: no price list"),
        (
            {"taskset": {"task": {"fails": "no reward"}}},
            r"the environment gave agent agent no reward; its task needs a @vf.reward",
        ),
        (
            {"taskset": {"task": {"fails": "setup"}}},
            r"EpisodeFailed: TaskError: task setup: RuntimeError: the shop is closed",
        ),
        (
            {"agent": {"sampling": {"temperature": 0.5}, **CHAT["agent"]}},
            r"'temperature' is 0.5, but this run trains at 1",
        ),
        ({"timeout": {"episode": 0.001}}, r"EpisodeFailed: TimeoutError: .*exceeded its 0.001s deadline"),
    ],
)
async def test_a_failure_of_the_environment_is_a_failure_of_the_agent_and_never_a_reward(changes, complaint, tmp_path):
    task = settings(f"{OURS}/price_lookup.py", environment_args={**CHAT, **changes})
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        with pytest.raises(AgentError, match=complaint):
            await harness.play_task(tasks[0], ["It costs 3 cents."])


@pytest.mark.parametrize(
    ("environment", "args", "complaint"),
    [
        ("no_such_taskset", CHAT, r"taskset 'no_such_taskset' not found .*install the environment's package"),
        (
            "agents/word_problems.py",
            {},
            r'agent `agent` has the harness `bash`, which executes .*`agent.harness.id = "null"`',
        ),
        (
            "agents/word_problems.py",
            {"taskset": {"length": 3}, **CHAT},
            r"taskset.length\n  Extra inputs are not permitted",
        ),
        (
            "agents/word_problems.py",
            {"taskset": {"path": "nowhere.jsonl"}, **CHAT},
            r"FileNotFoundError: .*nowhere.jsonl",
        ),
        (
            f"{OURS}/price_lookup.py",
            {"taskset": {"items": []}, **CHAT},
            r"price_lookup\.py has no tasks; check the settings of its",
        ),
    ],
)
def test_an_environment_that_cannot_be_listed_is_an_error_with_what_it_raised(environment, args, complaint, tmp_path):
    with pytest.raises(SetupError, match=f"(?s){complaint}"):
        listed(settings(environment, environment_args=args), tmp_path)


PUBLIC_ENVIRONMENTS = [
    ("glossary", CHAT, [call("facts_lookup", '{"name": "Ada Lovelace"}'), "{answer}"], {"looked_up": 1.0}),
    ("scratchpad", CHAT, [call("scratchpad_roundtrip", '{"word": "alpha"}'), "alpha"], {"isolated": 1.0}),
    (
        "kuhn_poker",
        {seat: {"harness": {"id": "areal-chat"}} for seat in ("player0", "player1")},
        ["[bet]", "[fold]"],
        {"player0/payoff": 1.0, "player1/payoff": -1.0, "player0/forfeit": 0.0, "player1/forfeit": 0.0},
    ),
]


@pytest.mark.skipif(
    not PUBLIC, reason="AREAL_VERIFIERS_ENVIRONMENTS names no folder of the verifiers repository's environments"
)
@pytest.mark.parametrize(
    ("name", "args", "script", "metrics"), PUBLIC_ENVIRONMENTS, ids=[one[0] for one in PUBLIC_ENVIRONMENTS]
)
async def test_a_public_environment_is_played_unmodified(name, args, script, metrics, tmp_path):
    task = settings(f"{Path(PUBLIC).resolve() / name / name}", environment_args=args, environment_tasks=5)
    tasks = listed(task, tmp_path)
    assert len(tasks) == 5
    lines = [line.replace("{answer}", str(tasks[0].data["task"].get("answer"))) for line in script]
    async with playing(task) as harness:
        result, trajectory = await harness.play_task(tasks[0], lines)
        assert result.metrics == metrics
        assert Counter(turn.trained for turn in trajectory.interactions) == {True: 2}
