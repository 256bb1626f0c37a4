"""Roles that share a group are compared with themselves only."""

from __future__ import annotations

import msgspec
import pytest
import torch
from support.credit_play import play, system, user

from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit, sample_rewards
from areal_actors.training.algorithms.groups import group_centered, group_normalized
from areal_actors.training.step_data import step_tokens

EPISODES = [(1.0, 5.0), (0.0, 4.0), (1.0, 4.0), (0.0, 5.0)]
"""Rewards of solver and judge."""


async def trajectories(send, how):
    made = []
    for solved, judged in EPISODES:

        async def agent(p, solved=solved, judged=judged):
            prompts = {
                "prompt": ((system("solve"),), (system("judge"),)),
                "clock": ((system(f"{len(made)}"),), (system(f"at {len(made)}"),)),
            }
            for role, reward, prompt in zip(
                ("solver", "judge"), (solved, judged), prompts.get(how, ((), ())), strict=True
            ):
                await p.ask(*prompt, user("a task"), conversation=role if how == "conversation" else "")
                await p.reward(reward, role=role if how in {"name", "clock"} else "")
            return judged

        made.append((await play(send, agent))[0])
    return made


@pytest.mark.parametrize("how", ["prompt", "conversation", "name", "clock"])
async def test_a_solver_is_not_compared_with_its_judge(send, how):
    credit = Credit(baseline_over="roles")
    episodes = await trajectories(send, how)
    rows = [row for number, one in enumerate(episodes) for row in sequences_of(_named(one, number), 0, 0, credit)]
    tokens = step_tokens(rows, 1)
    assert len(torch.unique(tokens.groups)) == 2
    centered = group_centered(tokens.rewards, tokens.samples, tokens.groups).tolist()
    assert centered == [0.5, 0.5, -0.5, -0.5, 0.5, -0.5, -0.5, 0.5]
    assert group_normalized(tokens.rewards, tokens.samples, tokens.groups).abs().max() < 1
    assert [sorted(sample_rewards(one, credit)) for one in episodes] == [sorted(rewards) for rewards in EPISODES]


async def test_without_roles_an_episode_is_one_sample(send):
    first, *_ = await trajectories(send, "name")
    tokens = step_tokens(sequences_of(first, 3, 0, Credit()), 1)
    assert tokens.groups.tolist() == [3]


def _named(trajectory, number):
    return msgspec.structs.replace(trajectory, episode=f"0.{number}")
