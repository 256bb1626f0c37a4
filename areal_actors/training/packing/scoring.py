"""Scores of the selected tokens.

Log-probabilities at the sampling temperature with entropies, or values of a scalar head.
The head, which is most of a small model's compute, is applied to the hidden states of the selected positions only.
Weights keep their dtype; the model runs in the scorer's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from areal_actors.core.errors import EngineError
from areal_actors.training.models import HEAD
from areal_actors.training.packing.hidden_states import HiddenStates
from areal_actors.training.packing.tensors import MicroBatch, Sharing
from areal_actors.training.packing.token_scores import token_scores

PROBE_IDS = (0, 1)
PROBE_TOLERANCE = 1e-3


class TokenScorer(torch.nn.Module):
    """A causal language model of Hugging Face.

    Raises:
        EngineError: the model transforms its logits after the head (soft caps, scales), or the temperature is 0.
    """

    def __init__(
        self, model: Any, temperature: float, dtype: torch.dtype = torch.float32, *, entropy_gradient: bool = False
    ) -> None:
        """`entropy_gradient`: as in `token_scores`."""
        super().__init__()
        if temperature <= 0:
            raise EngineError(
                f"sampling.temperature = {temperature}: a model cannot be trained on greedy samples; set it above 0"
            )
        self.model = model
        self.hidden_states = HiddenStates(model.base_model, dtype)
        self.temperature = temperature
        self.dtype = dtype
        self._entropy_gradient = entropy_gradient
        if not _is_linear(model, model.get_output_embeddings(), self.hidden_states, PROBE_IDS):
            raise EngineError(
                f"{type(model).__name__} changes its logits after the head (a soft cap or a scale), "
                "which this trainer does not support; choose another model"
            )

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probability (with gradient) and entropy of each selected token, float32 `[tokens]` each."""
        head = self.model.get_output_embeddings()
        temperature = (
            self.temperature if batch.temperatures is None else batch.temperatures.nan_to_num(nan=self.temperature)
        )
        return token_scores(
            head,
            self.hidden_states(batch),
            batch.labels,
            temperature,
            self.dtype,
            entropy_gradient=self._entropy_gradient,
        )


class ValueScorer(torch.nn.Module):
    """A sequence classifier of Hugging Face with a scalar head.

    Raises:
        EngineError: the model does more than apply its head to its hidden states.
    """

    def __init__(self, model: Any, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = model
        self.hidden_states = HiddenStates(model.base_model, dtype)
        self.dtype = dtype
        if not _is_linear(model, model.get_submodule(HEAD), self.hidden_states, PROBE_IDS[:1]):
            raise EngineError(
                f"{type(model).__name__} does not compute its label by one linear head; choose another model"
            )

    def forward(self, batch: MicroBatch) -> Tensor:
        """Values float32 `[tokens]`, with gradient, each at the position before its token."""
        hidden = self.hidden_states(batch)
        with torch.autocast(batch.token_ids.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            values: Tensor = self.model.get_submodule(HEAD)(hidden)
        return values[:, 0].float()


def set_up(scorers: Iterable[TokenScorer | ValueScorer], wanted: Sharing, *, compiles: bool) -> Sharing:
    """Returns the `sharing` of models that take the same micro-batches, and compiles their blocks if wanted.

    Each may occur repeatedly.

    Raises:
        EngineError: `wanted` requires prefix sharing, and a model does not support it.
        SetupError: blocks cannot be compiled here.
    """
    models = [scorer.hidden_states for scorer in dict.fromkeys(scorers)]
    for hidden_states in models:
        wanted = hidden_states.resolve_sharing(wanted)
    for hidden_states in models if compiles else ():
        hidden_states.compile()
    return wanted


@torch.no_grad()
def _is_linear(model: Any, head: Any, hidden_states: HiddenStates, ids: tuple[int, ...]) -> bool:
    """True if base model and head give the model's own logits for these token ids."""
    token_ids = torch.tensor([ids], device=model.device)
    own = model(input_ids=token_ids, use_cache=False).logits.float()
    ours = head(hidden_states.forward_ids(token_ids)).float().view_as(own)
    return torch.allclose(own, ours, atol=PROBE_TOLERANCE, rtol=PROBE_TOLERANCE)
