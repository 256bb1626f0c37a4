"""What a model thinks of tokens it is shown: their log-probabilities and its entropy, at the sampling temperature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_actors.errors import EngineError
from areal_actors.tensors import MicroBatch

PROBE_TOLERANCE = 1e-3


class Scorer(torch.nn.Module):
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
        self.temperature = temperature
        self.dtype = dtype
        self._probe()

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probability (with gradient) and entropy (without) at each token of interest, float32 `[tokens]` each."""
        with torch.autocast(batch.token_ids.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            logits = self._head(self._hidden(batch.token_ids).flatten(0, 1)[batch.positions]).float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        logps = logits.log_softmax(dim=-1)
        with torch.no_grad():
            entropy = -(logps.exp() * logps).sum(dim=-1)
        return logps.gather(1, batch.labels.unsqueeze(1)).squeeze(1), entropy

    def _hidden(self, token_ids: Tensor) -> Tensor:
        """Last hidden states, `[rows, width, hidden]`; no mask: padding stands where a causal model never looks."""
        hidden: Tensor = self.model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
        return hidden

    def _head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits

    @torch.no_grad()
    def _probe(self) -> None:
        """See that base model and head make the model's own logits."""
        token_ids = torch.tensor([[0, 1]], device=self.model.device)
        own = self.model(input_ids=token_ids, use_cache=False).logits.float()
        ours = self._head(self._hidden(token_ids)).float()
        if not torch.allclose(own, ours, atol=PROBE_TOLERANCE, rtol=PROBE_TOLERANCE):
            raise EngineError(
                f"{type(self.model).__name__} changes its logits after the head (a soft cap or a scale), "
                "which this trainer would miss; choose another model"
            )
