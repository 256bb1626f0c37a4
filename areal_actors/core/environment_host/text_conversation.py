"""Plays an environment as a conversation: observations are messages, the model's answers are actions.

The programs of this folder use it in the environment's own interpreter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import openai

MODEL = "default"
SHOWN_CHARACTERS = 300
CLIENT = openai.AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0, timeout=None)
"""Client of all episodes of this process, which keeps its connections."""


class NoActionInAnswer(Exception):
    """The model's answer is no action, and no reward is declared for that."""


class Step(NamedTuple):
    """An environment's answer to one action."""

    text: str
    """The next observation."""
    reward: float
    ended: bool
    truncated: bool = False


async def play_conversation(
    opening: str,
    take_step: Callable[[str], Awaitable[Step | None]],
    *,
    max_steps: int,
    malformed_reward: float | None,
    actions: Sequence[str],
    by_step: bool,
    base_url: str,
    api_key: str,
) -> dict[str, Any]:
    """Play an episode; returns {"reward" or "rewards", "metrics"}.

    Args:
        opening: the first message.
        take_step: makes the step of an answer in the environment; returns None if the answer is no action.
        max_steps: number of answers after which the episode ends.
        malformed_reward: reward of an answer without an action.
        actions: names of the actions, if they have any, for the message about such an answer.
        by_step: return the reward of each call, by its id, in place of their sum.
        base_url: address of the model.
        api_key: key of the episode.

    Raises:
        NoActionInAnswer: an answer is no action, and there is no `malformed_reward`.
        openai.APIError: a model call failed.
    """
    ended, truncated, malformed = False, False, 0
    messages: list[Any] = [{"role": "user", "content": opening}]
    rewards: dict[str, float] = {}
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    while not (ended or truncated) and len(rewards) < max_steps:
        answer = await client.chat.completions.create(model=MODEL, messages=messages)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        step = await take_step(message.content or "")
        if step is not None:
            ended, truncated = step.ended, step.truncated
            rewards[answer.id] = step.reward
            messages.append({"role": "user", "content": step.text})
            continue
        malformed += 1
        if malformed_reward is None:
            shown = (message.content or "")[-SHOWN_CHARACTERS:]
            raise NoActionInAnswer(
                f"answer {len(rewards) + 1} names no action: {shown!r}; declare environment_args.malformed_reward"
            )
        rewards[answer.id] = float(malformed_reward)
        names = f" of {', '.join(actions)}" if actions else ""
        messages.append({"role": "user", "content": f"This names no action{names}."})
    total = sum(rewards.values())
    metrics = {"return": total, "steps": len(rewards), "malformed": malformed, "terminated": float(ended)}
    return {"rewards" if by_step else "reward": rewards if by_step else total, "metrics": metrics}
