"""AReaL's `MultiTurnWorkflow`: the model answers again while its answer is wrong, for a discounted reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from areal_actors.compat.areal import stats_tracker, workflow_context
from areal_actors.compat.areal.client import RecordingOpenAI
from areal_actors.compat.areal.data import import_from_string, load_hf_tokenizer
from areal_actors.compat.areal.engine import InferenceEngine
from areal_actors.compat.areal.generation import GenerationHyperparameters
from areal_actors.compat.areal.interactions import TokenInteraction
from areal_actors.compat.areal.reward import AsyncRewardWrapper
from areal_actors.compat.areal.workflow import ArealWorkflow

AGAIN = "This answer is not correct. Check each step, correct the mistake, and state the final answer again."
"""Message after a wrong answer."""


class MultiTurnWorkflow(ArealWorkflow):
    """Ends at the first reward that is not 0; all its calls have the last reward, discounted by each turn before it."""

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters,
        tokenizer: Any,
        max_turns: int,
        turn_discount: float,
    ) -> None:
        """Functions may be given by name, a tokenizer by its folder or hub id.

        Raises:
            ValueError: there is no turn, or the discount is not above 0 and at most 1.
        """
        if max_turns < 1 or not 0 < turn_discount <= 1:
            raise ValueError(f"max_turns is {max_turns}, turn_discount {turn_discount}; write at least 1, and (0, 1]")
        function = import_from_string(reward_fn) if isinstance(reward_fn, str) else reward_fn
        self.reward_fn = AsyncRewardWrapper(function)
        self.tokenizer = load_hf_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.gconfig = gconfig
        self.max_turns = max_turns
        self.turn_discount = turn_discount

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, TokenInteraction]:
        """Ask until the answer has a reward, at most `max_turns` times."""
        client = RecordingOpenAI(engine, tokenizer=self.tokenizer, chat_template_type="concat")
        messages, reward, turns = list(data["messages"]), 0.0, 0
        while not reward and turns < self.max_turns:
            messages += [{"role": "user", "content": AGAIN}] if turns else []
            answer = await client.chat.completions.create(
                messages=messages, **self.gconfig.to_openai_args_dict(exclude_args=["n_samples"])
            )
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            tokens = engine.calls[answer.id]
            texts = self.tokenizer.decode(tokens.prompt_token_ids), self.tokenizer.decode(tokens.token_ids)
            reward = await self.reward_fn(*texts, tokens.prompt_token_ids, tokens.token_ids, **data)
            turns += 1
        reward *= self.turn_discount ** (turns - 1)
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward, num_turns=turns)
        client.set_last_reward(reward)
        return client.export_interactions("concat")
