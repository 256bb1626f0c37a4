"""The model calls of an episode with their tokens and rewards, as `ArealOpenAI.export_interactions` returns them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from areal_actors.compat.areal.generation import TokenResponse
from areal_actors.rewards import check_reward

STYLES = ("individual", "concat")


@dataclass
class TokenInteraction:
    """AReaL's `InteractionWithTokenLogpReward`: one model call."""

    model_response: TokenResponse | None = None
    reward: float | None = None
    parent: TokenInteraction | None = None
    """The call whose conversation it continues."""
    chat_template_type: str = "hf"
    messages: list[Any] = field(default_factory=list)
    """The request's messages."""
    output_message_list: list[dict[str, Any]] | None = None
    completion: Any = None
    """The chat completion; None for a response."""
    response: Any = None

    @property
    def interaction_id(self) -> str:
        """The `id` of the answer."""
        return str((self.completion or self.response).id)

    @property
    def tokens(self) -> list[int]:
        """Prompt and sampled tokens."""
        assert self.model_response is not None, "the call has no tokens"
        return self.model_response.input_tokens + self.model_response.output_tokens

    def earlier_calls(self) -> Iterator[TokenInteraction]:
        """Yield the earlier calls of the conversation whose tokens this call's prompt begins with, last to first."""
        earlier, tokens = self.parent, self.tokens
        while earlier is not None and tokens[: len(earlier.tokens)] == earlier.tokens:
            yield earlier
            earlier = earlier.parent

    def to_tensor_dict(self) -> dict[str, Any]:
        """The call as torch tensors, shape [1, tokens].

        With `chat_template_type = "concat"` the calls that it extends are trained, too.
        """
        torch = importlib.import_module("torch")  # agents that return interactions do not load it
        assert self.model_response is not None, "the call has no tokens"
        length = len(self.tokens)
        columns: dict[str, list[Any]] = {
            "loss_mask": [0] * length,
            "logprobs": [0.0] * length,
            "versions": [-1] * length,
        }
        for call in (self, *(self.earlier_calls() if self.chat_template_type == "concat" else ())):
            response = call.model_response
            assert response is not None
            end = response.input_len + response.output_len
            columns["loss_mask"][response.input_len : end] = [1] * response.output_len
            columns["logprobs"][response.input_len : end] = response.output_logprobs
            columns["versions"][response.input_len : end] = response.output_versions
        return {
            "input_ids": torch.tensor([self.tokens], dtype=torch.int32),
            "loss_mask": torch.tensor([columns["loss_mask"]], dtype=torch.int32),
            "logprobs": torch.tensor([columns["logprobs"]], dtype=torch.float32),
            "versions": torch.tensor([columns["versions"]], dtype=torch.int32),
            "attention_mask": torch.ones(1, length, dtype=torch.bool),
            "rewards": torch.tensor([self.reward or 0.0], dtype=torch.float32),
        }


class InteractionCache(dict[str, TokenInteraction]):
    """Completed calls by id, in order of completion."""

    def __init__(self) -> None:
        super().__init__()
        self._discounted = False

    def set_reward(self, interaction_id: str, reward: float) -> None:
        """Set the reward of a call.

        Raises:
            KeyError: there is no such call.
            RewardError: the reward is not a finite number.
        """
        if interaction_id not in self:
            raise KeyError(
                f"there is no completed call '{interaction_id}'; this client has {', '.join(self) or 'none'}"
            )
        self[interaction_id].reward = check_reward(reward)

    def set_last_reward(self, reward: float) -> None:
        """Set the reward of the last completed call.

        Raises:
            RuntimeError: there is none.
        """
        if not self:
            raise RuntimeError("set_last_reward: this client has completed no call; make a model call first")
        self.set_reward(next(reversed(self)), reward)

    def apply_reward_discount(self, turn_discount: float = 1.0) -> dict[str, TokenInteraction]:
        """Add to the reward of each call `turn_discount` times that of the call completed after it.

        A missing reward is 0.

        Raises:
            RuntimeError: it was called before, or no call has a reward.
        """
        if self._discounted:
            raise RuntimeError("apply_reward_discount was called before; call it once for an episode")
        if self and all(call.reward is None for call in self.values()):
            raise RuntimeError("apply_reward_discount: no call has a reward; call set_reward or set_last_reward first")
        self._discounted = True
        later = 0.0
        for call in reversed(self.values()):
            call.reward = later = later * turn_discount + (call.reward or 0.0)
        return dict(self)

    def export_interactions(self, style: str) -> dict[str, TokenInteraction]:
        """Every call (`individual`), or those that no other call continues (`concat`).

        Raises:
            ValueError: the style is neither, or the client's `chat_template_type` does not fit it.
        """
        if style not in STYLES:
            raise ValueError(f"the export style is {style!r}; write one of {', '.join(STYLES)}")
        if style == "individual":
            return dict(self)
        if any(call.chat_template_type != "concat" for call in self.values()):
            raise ValueError(
                "style = 'concat' needs ArealOpenAI(chat_template_type='concat'); or export with style = 'individual'"
            )
        continued = {call.parent.interaction_id for call in self.values() if call.parent is not None}
        return {name: call for name, call in self.items() if name not in continued}
