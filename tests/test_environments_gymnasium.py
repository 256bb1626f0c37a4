"""Genuine Gymnasium in its own interpreter: its toy text environments, and one of a user; rewards are those of its
steps."""

from __future__ import annotations

import pytest
from support.environment_harness import gymnasium_settings, listed, playing
from support.framework_harness import assert_extends

from areal_actors.core.errors import AgentError, SetupError

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

LAKE = {"actions": ["left", "down", "right", "up"], "make": {"is_slippery": False}}
PATH = [f"I go on.\nAction: {way}" for way in ("down", "down", "right", "right", "Down", "right.")]
GUESS = "tests/support/guess_number.py:GuessNumber-v0"


async def test_an_episode_has_the_rewards_of_the_steps_and_replays(tmp_path):
    task = gymnasium_settings("FrozenLake-v1", environment_tasks=3, **LAKE)
    tasks = listed(task, tmp_path)
    assert [one.id for one in tasks] == ["FrozenLake-v1-0", "FrozenLake-v1-1", "FrozenLake-v1-2"]
    assert tasks[0].data["question"].endswith("[red S]FFF\nFHFH\nFFFH\nHFFG")
    async with playing(task) as harness:
        for _ in range(2):
            result, trajectory = await harness.play_task(tasks[1], PATH)
            assert (result.reward, result.metrics) == (
                1.0,
                {"return": 1.0, "steps": 6.0, "malformed": 0.0, "terminated": 1.0},
            )
            assert (trajectory.reward, len(trajectory.interactions)) == (1.0, 6)
            assert_extends(harness, trajectory)
        assert tasks[1].data["question"] in harness.prompt_text(0)
        assert "(Down)\nSFFF\n[red F]HFH" in harness.prompt_text(1)


async def test_with_a_turn_discount_every_call_has_the_reward_of_its_step(tmp_path):
    task = gymnasium_settings(GUESS, turn_discount=0.9)
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        result, trajectory = await harness.play_task(tasks[0], ["Action: 9", "Action: 8", "Action: 9", "Action: 9"])
        rewards = [call.reward for call in trajectory.interactions]
        assert list(result.rewards.values()) == rewards
        assert set(rewards) <= {-0.1, 1.0}
        assert result.metrics["return"] == pytest.approx(sum(rewards))


async def test_the_same_seed_is_the_same_number_and_the_step_limit_ends_the_episode(tmp_path):
    task = gymnasium_settings(GUESS, environment_tasks=20, max_steps=1)
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        firsts = [(await harness.play_task(one, ["Action: 5"]))[0].reward for one in tasks]
        again = [(await harness.play_task(one, ["Action: 5"]))[0].reward for one in tasks]
    assert firsts == again
    assert set(firsts) == {1.0, -0.1}


async def test_an_answer_without_an_action_fails_the_episode_or_has_the_declared_reward(tmp_path):
    task = gymnasium_settings("FrozenLake-v1", **LAKE)
    first, *_ = listed(task, tmp_path)
    async with playing(task) as harness:
        with pytest.raises(
            AgentError, match=r"answer 2 names no action: 'Action: fly'; declare environment_args.malformed_reward"
        ):
            await harness.play_task(first, ["Action: down", "Action: fly"])
    task = gymnasium_settings("FrozenLake-v1", malformed_reward=-0.25, **LAKE)
    async with playing(task) as harness:
        result, _ = await harness.play_task(first, ["Hm.", *PATH])
        assert (result.reward, result.metrics["malformed"], result.metrics["steps"]) == (0.75, 1.0, 7.0)
        assert "This names no action of left, down, right, up." in harness.prompt_text(1)


async def test_an_error_of_the_environment_fails_the_episode(tmp_path):
    task = gymnasium_settings(GUESS)
    tasks = listed(task, tmp_path)
    async with playing(task) as harness:
        with pytest.raises(AgentError, match="0 breaks this environment"):
            await harness.play_task(tasks[0], ["Action: 0"])
        assert (await harness.play_task(tasks[0], ["Action: 1"] * 4))[0].metrics["steps"] == 4.0


@pytest.mark.parametrize(
    ("environment", "args", "complaint"),
    [
        ("FrozenLake-v1", {"action": ["left"]}, "environment_args has 'action'; expected some of make, instructions"),
        ("FrozenLake-v1", {"actions": ["left"]}, "actions names 1 actions; the environment has 4, from 0 to 3"),
        ("FrozenLake-v1", {"action_pattern": "x"}, "needs one group, with the action"),
        ("Blackjack-v1", {"observation": "{observation[x]}"}, "does not fit the observation"),
        ("Blackjack-v1", {"observation": "{render}"}, "renders no text; leave it out"),
        ("NoSuchGame-v0", {}, "NoSuchGame"),
        ("nowhere.py:Game-v0", {}, "No module named 'nowhere'"),
    ],
)
def test_what_does_not_fit_is_an_error_when_a_run_is_created(tmp_path, environment, args, complaint):
    with pytest.raises(SetupError, match=complaint):
        listed(gymnasium_settings(environment, **args), tmp_path)
