"""Frozen models beside the trained one: the reference policy and the teacher."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import msgspec
import torch
from torch import Tensor

from areal_actors.core.errors import SetupError
from areal_actors.training.algorithms.base import INITIAL, Algorithm
from areal_actors.training.lora import Lora
from areal_actors.training.models import load_model
from areal_actors.training.packing.scoring import TokenScorer, ValueScorer
from areal_actors.training.packing.tensors import MicroBatch
from areal_actors.training.ranks import Ranks
from areal_actors.weights.model_hub import model_folder

Role = Literal["reference", "teacher"]


class FrozenModel:
    """A model that only computes log-probabilities."""

    def __init__(self, scorer: TokenScorer, context: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.scorer = scorer
        self._context = context

    @torch.no_grad()
    def __call__(self, batch: MicroBatch) -> Tensor:
        """Log-probabilities float32 `[tokens]`."""
        with self._context():
            # Another policy than the one that sampled chooses its own experts.
            logp: Tensor = self.scorer(msgspec.structs.replace(batch, routes=None))[0]
            return logp


def frozen_models(
    algorithm: Algorithm,
    policy: TokenScorer | ValueScorer,
    policy_folder: str,
    lora: Lora | None,
    ranks: Ranks,
) -> dict[Role, FrozenModel]:
    """Load the frozen models that an algorithm needs; a model named twice is loaded once.

    `initial` is the model of the folder, before any training; under LoRA it is the policy with its adapter disabled,
    which costs no memory.

    Raises:
        SetupError: a model is not available, or its vocabulary differs from the policy's.
    """
    roles = [role for role in algorithm.models if role in algorithm.needs]
    if not roles:
        return {}
    if isinstance(policy, ValueScorer):
        raise SetupError(f"{type(algorithm).__name__} trains a scalar head, which cannot use a {' or '.join(roles)}")
    by_folder: dict[str, FrozenModel] = {} if lora is None else {policy_folder: FrozenModel(policy, lora.off)}
    models: dict[Role, FrozenModel] = {}
    for role in roles:
        name = algorithm.models[role]
        folder = policy_folder if name == INITIAL else model_folder(name)
        if folder not in by_folder:
            by_folder[folder] = FrozenModel(_scorer(folder, role, policy, ranks))
        models[role] = by_folder[folder]
    return models


def _scorer(folder: str, role: Role, policy: TokenScorer, ranks: Ranks) -> TokenScorer:
    """Loads a frozen model; it scores at the policy's temperature, in its dtype."""
    model = load_model(folder, "tokens", weights=ranks.first, saved=False).requires_grad_(False)
    frozen_size, ours = (loaded.config.get_text_config().vocab_size for loaded in (model, policy.model))
    if frozen_size != ours:
        raise SetupError(
            f"the {role} in {folder} has {frozen_size} tokens, the policy {ours}: use a model with the policy's"
            " tokenizer"
        )
    return TokenScorer(ranks.parallelize(model, policy.dtype).to(policy.model.device), policy.temperature, policy.dtype)
