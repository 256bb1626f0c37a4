"""AReaL's `RolloutWorkflow`, as an agent: `arun_episode` runs on the gateway's session of an episode."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from areal_actors.compat.areal.engine import InferenceEngine
from areal_actors.compat.areal.interactions import TokenInteraction
from areal_actors.compat.areal.tensor_rows import tensor_rewards
from areal_actors.core.errors import AgentError


class ArealWorkflow(ABC):
    """Define `arun_episode`; a recipe or a controller runs the workflow like any agent, through `run`."""

    @abstractmethod
    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Any:
        """Run one episode; returns a tensor dict, exported interactions, or None to reject it."""

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str) -> Any:
        """Run one episode, and return the rewards of its calls by interaction id; None rejects it.

        Raises:
            AgentError: it returned tokens that were not sampled in it, or no reward.
        """
        async with InferenceEngine(data, base_url=base_url, api_key=api_key) as engine:
            returned = await self.arun_episode(engine, data)
            rewards = rewards_of(returned, engine)
            if isinstance(rewards, Mapping) and rewards:
                await engine.select_trained(rewards)
            return rewards


class ArealAgent(ABC):
    """AReaL's `AgentWorkflow`, which is deprecated there.

    Any class with `async def run(self, data, **extra_kwargs)` is an agent.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Warn, as AReaL does."""
        message = (
            f"{cls.__name__} inherits from AgentWorkflow, which is deprecated; a class with `async def run` needs no"
            " base"
        )
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return super().__new__(cls)

    @abstractmethod
    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> Any:
        """Run one episode; returns a reward, or rewards by the ids of responses."""


def rewards_of(returned: Any, engine: InferenceEngine) -> Any:
    """The rewards by interaction id of what `arun_episode` returned.

    None, a number, a text or a mapping of numbers is returned as it is.

    Raises:
        AgentError: a tensor dict or an interaction does not belong to the episode, or no interaction has a reward.
    """
    if not isinstance(returned, Mapping):
        return returned
    if any(isinstance(value, TokenInteraction) for value in returned.values()):
        return interaction_rewards(returned, engine)
    return tensor_rewards(returned, engine.calls) if "input_ids" in returned else (dict(returned) or None)


def interaction_rewards(returned: Mapping[str, TokenInteraction], engine: InferenceEngine) -> dict[str, float]:
    """The reward of each call that exported interactions train.

    A missing reward is 0, as in AReaL, if another interaction has one. A call that was exported as part of later ones
    (`concat`) has their reward, the mean if there are several.

    Raises:
        AgentError: an interaction is not of this episode, or none has a reward.
    """
    if unknown := [name for name in returned if name not in engine.calls]:
        raise AgentError(
            f"arun_episode returned interaction {unknown[0]}, which is not a call of this episode; make one client for"
            " each"
        )
    if all(interaction.reward is None for interaction in returned.values()):
        raise AgentError(
            "arun_episode returned interactions without a reward; call set_reward or set_last_reward, or return None"
        )
    rewards = {name: [interaction.reward or 0.0] for name, interaction in returned.items()}
    for interaction in returned.values():
        for earlier in interaction.earlier_calls() if interaction.chat_template_type == "concat" else ():
            if (name := earlier.interaction_id) not in returned:
                rewards.setdefault(name, []).append(interaction.reward or 0.0)
    return {name: sum(each) / len(each) for name, each in rewards.items()}
