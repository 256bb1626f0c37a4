"""Genuine verifiers with `load_environment`, a dataset and a rubric, the interface before 0.2: its episodes, and what
is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.environment_harness import listed, playing, settings
from support.framework_harness import assert_extends, call

from areal_actors.core.errors import AgentError, SetupError

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PYTHON = Path(".environments") / "verifiers-rubrics" / "bin" / "python"
OURS = "tests/support/rubric_environments"


def of_rubrics(name, **task):
    """`[task]` of an environment of this interface."""
    return settings(f"{OURS}/{name}.py", PYTHON, **task)


async def test_one_turn_is_scored_by_the_weighted_functions_of_the_rubric(tmp_path):
    task = of_rubrics("sums_of_two", environment_args={"numbers": 3}, environment_tasks=5)
    tasks = listed(task, tmp_path)
    assert [one.id for one in tasks] == [f"sums_of_two-{number}" for number in range(3)]
    assert tasks[1].data["question"] == "What is 1 + 1?"
    async with playing(task) as harness:
        result, trajectory = await harness.play_task(tasks[1], ["2"])
        assert result.reward == trajectory.reward == 1.5
        assert {name: result.metrics[name] for name in ("right", "short")} == {"right": 1.0, "short": 1.0}
        assert "Answer with a number." in harness.prompt_text(0)
        result, _ = await harness.play_task(tasks[1], ["It is certainly not two, but 3."])
        assert result.reward == 0.0


async def test_a_tool_of_the_environment_is_called_and_the_second_prompt_extends_the_first_to_the_token(tmp_path):
    task = of_rubrics("shop")
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        result, trajectory = await harness.play_task(
            tasks[1], [call("shop_price", '{"item": "pear"}'), "It costs 5 cents."]
        )
        assert (result.reward, len(trajectory.interactions)) == (1.0, 2)
        assert_extends(harness, trajectory)
        assert "<tool_response>\n5\n</tool_response>" in harness.prompt_text(1)


async def test_an_error_of_a_function_of_the_rubric_is_a_failed_attempt_and_no_reward_of_zero(tmp_path):
    task = of_rubrics("sums_of_two", environment_args={"fails": True})
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        with pytest.raises(AgentError, match=r"right of its rubric raised KeyError: 'no such row'"):
            await harness.play_task(tasks[0], ["1"])


def test_rewards_that_compare_the_episodes_of_a_group_are_refused(tmp_path):
    with pytest.raises(SetupError, match="functions of its rubric compare the episodes of a group"):
        listed(of_rubrics("sums_of_two", environment_args={"compares": True}), tmp_path)


def test_an_environment_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(SetupError, match="no_such_environment"):
        listed(of_rubrics("no_such_environment"), tmp_path)
