"""What a model thinks of tokens it is shown: their log-probabilities and its entropy, at the sampling temperature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_actors.engines.hidden_states import HiddenStates
from areal_actors.engines.tensors import MicroBatch
from areal_actors.engines.token_scores import token_scores
from areal_actors.errors import EngineError

PROBE_TOLERANCE = 1e-3


class TokenScorer(torch.nn.Module):
    """A causal language model of Hugging Face that scores chosen positions only.

    The head, which is most of a small model's work, is applied to the hidden states of those positions alone. Weights
    stay as they are; the model runs in `dtype`.

    Raises:
        EngineError: the model does more to its logits than its head says (soft caps, scales), or the temperature is 0.
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
        """Log-probability (with gradient) and entropy (without) at each token of interest, float32 `[tokens]` each."""
        head = self.model.get_output_embeddings()
        return token_scores(head, self.hidden_states(batch), batch.labels, self.temperature, self.dtype)

    def _head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits

    @torch.no_grad()
    def _probe(self) -> None:
        """See that base model and head make the model's own logits."""
        token_ids = torch.tensor([[0, 1]], device=self.model.device)
        own = self.model(input_ids=token_ids, use_cache=False).logits.float()
        ours = self._head(self.hidden_states.forward_ids(token_ids)).float()
        if not torch.allclose(own, ours, atol=PROBE_TOLERANCE, rtol=PROBE_TOLERANCE):
            raise EngineError(
                f"{type(self.model).__name__} changes its logits after the head (a soft cap or a scale), "
                "which this trainer would miss; choose another model"
            )
