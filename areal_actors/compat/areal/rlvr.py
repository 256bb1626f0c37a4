"""AReaL's `RLVRWorkflow`: one prompt, one completion, one reward, over token ids."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from areal_actors.compat.areal import stats_tracker, workflow_context
from areal_actors.compat.areal.data import apply_chat_template, import_from_string, load_hf_tokenizer
from areal_actors.compat.areal.engine import InferenceEngine
from areal_actors.compat.areal.generation import GenerationHyperparameters, TokenRequest
from areal_actors.compat.areal.reward import AsyncRewardWrapper
from areal_actors.compat.areal.workflow import ArealWorkflow


# AReaL's signature
def default_get_input_ids_fn(data: Any, tokenizer: Any, enable_thinking: bool) -> list[int]:  # noqa: FBT001
    """Token ids of messages, up to the beginning of the answer."""
    ids: list[int] = apply_chat_template(tokenizer, data, add_generation_prompt=True, enable_thinking=enable_thinking)
    return ids


def default_data_extract_prompt_fn(data: dict[str, Any]) -> Any:
    """The messages of a row."""
    return data["messages"]


class RLVRWorkflow(ArealWorkflow):
    """Calls `reward_fn(prompt, completions, prompt_ids, completion_ids, **row)`."""

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters,
        tokenizer: Any,
        enable_thinking: bool = False,  # noqa: FBT001, FBT002 - AReaL's signature
        get_input_ids_fn: Callable[[Any, Any, bool], list[int]] | str = default_get_input_ids_fn,
        data_extract_prompt_fn: Callable[[dict[str, Any]], Any] | str = default_data_extract_prompt_fn,
    ) -> None:
        """Functions may be given by name (`package.module.function`), a tokenizer by its folder or hub id."""
        self.tokenizer = load_hf_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(self.tokenizer).new(n_samples=1)
        self.enable_thinking = enable_thinking
        self.reward_fn = AsyncRewardWrapper(_function(reward_fn))
        self.get_input_ids_fn = _function(get_input_ids_fn)
        self.data_extract_prompt_fn = _function(data_extract_prompt_fn)

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, Any]:
        """Sample one completion and score it; returns tensors of shape [1, tokens]."""
        torch = importlib.import_module("torch")  # a process of an agent without tensors does not load it
        ids = self.get_input_ids_fn(self.data_extract_prompt_fn(data), self.tokenizer, self.enable_thinking)
        sampled = await engine.agenerate(TokenRequest(input_ids=ids, gconfig=self.gconfig, tokenizer=self.tokenizer))
        texts = self.tokenizer.decode(ids), self.tokenizer.decode(sampled.output_tokens)
        reward = await self.reward_fn(*texts, sampled.input_tokens, sampled.output_tokens, **data)
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)
        zeros = [0] * sampled.input_len
        return {
            "input_ids": torch.tensor([sampled.input_tokens + sampled.output_tokens], dtype=torch.int32),
            "loss_mask": torch.tensor([zeros + [1] * sampled.output_len], dtype=torch.int32),
            "logprobs": torch.tensor([[0.0] * sampled.input_len + sampled.output_logprobs], dtype=torch.float32),
            "versions": torch.tensor([[-1] * sampled.input_len + sampled.output_versions], dtype=torch.int32),
            "attention_mask": torch.ones(1, sampled.input_len + sampled.output_len, dtype=torch.bool),
            "rewards": torch.tensor([reward], dtype=torch.float32),
        }


def _function(given: Callable[..., Any] | str) -> Callable[..., Any]:
    function: Callable[..., Any] = import_from_string(given) if isinstance(given, str) else given
    return function
