"""Log-probabilities of given tokens and the entropy at their positions, at the sampling temperature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_actors.core.errors import EngineError
from areal_actors.training.packing.hidden_states import HiddenStates
from areal_actors.training.packing.tensors import MicroBatch
from areal_actors.training.packing.token_scores import token_scores

PROBE_TOLERANCE = 1e-3


class TokenScorer(torch.nn.Module):
    """A causal language model of Hugging Face that scores selected positions only.

    The head, which is most of a small model's compute, is applied to the hidden states of these positions only. Weights
    keep their dtype; the model runs in `dtype`.

    Raises:
        EngineError: the model transforms its logits after the head (soft caps, scales), or the temperature is 0.
    """

    def __init__(self, model: Any, temperature: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if temperature <= 0:
            raise EngineError(f"sampling.temperature = {temperature}: a model cannot be trained on greedy samples; set it above 0")
        self.model = model
        self.hidden_states = HiddenStates(model.base_model, dtype)
        self.temperature = temperature
        self.dtype = dtype
        self._probe()

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probability (with gradient) and entropy (without) of each selected token, float32 `[tokens]` each."""
        head = self.model.get_output_embeddings()
        return token_scores(head, self.hidden_states(batch), batch.labels, self.temperature, self.dtype)

    def _head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits

    @torch.no_grad()
    def _probe(self) -> None:
        """Check that base model and head give the model's own logits."""
        token_ids = torch.tensor([[0, 1]], device=self.model.device)
        own = self.model(input_ids=token_ids, use_cache=False).logits.float()
        ours = self._head(self.hidden_states.forward_ids(token_ids)).float()
        if not torch.allclose(own, ours, atol=PROBE_TOLERANCE, rtol=PROBE_TOLERANCE):
            raise EngineError(
                f"{type(self.model).__name__} changes its logits after the head (a soft cap or a scale), "
                "which this trainer does not support; choose another model"
            )
