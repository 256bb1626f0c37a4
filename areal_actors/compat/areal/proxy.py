"""Submission of rewards by agents in a process of their own.

They know the model's address from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from areal_actors.library.workflow import ArealOpenAI


async def run_and_submit_rewards(func: Callable[[Any], Awaitable[Any]], data: Any) -> None:
    """Run an agent, `run_agent_return_reward(data)`, and set the rewards that it returns.

    It returns one reward, or rewards by the ids of responses.

    Raises:
        RewardError: a reward is not a finite number.
        KeyError: `OPENAI_BASE_URL` is not set: the agent does not run in `runner = "subprocess"`.
    """
    async with ArealOpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]) as client:
        rewards = await func(data)
        if not isinstance(rewards, Mapping):
            await client.set_last_reward(rewards)
            return
        for interaction_id, reward in rewards.items():
            await client.set_reward(interaction_id, reward)
