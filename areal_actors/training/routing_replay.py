"""Rollout routing replay (R3): the trainer sends each position to the experts that the engine chose for it.

The router of a mixture of experts chooses by the largest of its logits, and where two are close, another kernel, batch
or precision chooses otherwise. The trainer then computes another function than the one that sampled. Replay takes the
engine's choice I and the trainer's own router logits s: expert i has the weight g_i = I_i exp(s_i) / sum_j I_j
exp(s_j), so that gradients reach the router (Ma et al. 2025, https://arxiv.org/abs/2510.11370, "Rollout Routing
Replay"). A model that does not normalise the weights of its experts (`norm_topk_prob`) has those of its softmax over
all experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from areal_actors.core.errors import SetupError
from areal_actors.core.model_config import route_shape_of
from areal_actors.core.routes import MODEL_TYPES, RouteShape
from areal_actors.core.values import TrainingSequence
from areal_actors.training.packing.scoring import TokenScorer, ValueScorer
from areal_actors.training.ranks import Ranks
from areal_actors.training.settings import TrainerSettings


class RoutingReplay:
    """Replays the routes of micro-batches in the blocks of a model, and counts where its router chooses other experts.

    Blocks take the experts of their positions as an argument `routes`, int16 `[rows, width, layers, top_k]` with -1
    where the router chooses by itself, and hand it to their attention with the other arguments that they do not know.
    From there it goes to the router: a block that is computed again in the backward pass, with activations recomputed,
    runs no hooks of its own, but those of its parts.
    """

    def __init__(self, base_model: Any, shape: RouteShape) -> None:
        """Add hooks to the blocks of this rank's stage."""
        self.shape = shape
        self._counts: Tensor | None = None
        for number, block in enumerate(base_model.layers):
            place, router = None, None
            if number in shape.layers and hasattr(block, "mlp"):
                place, router = shape.layers.index(number), block.mlp.gate
                router.register_forward_hook(self._replay)
            if hasattr(block, "self_attn"):
                block.self_attn.register_forward_pre_hook(partial(self._hand_over, place, router), with_kwargs=True)

    @classmethod
    def of(
        cls, scorer: TokenScorer | ValueScorer, model_folder: str, settings: TrainerSettings
    ) -> RoutingReplay | None:
        """Returns the replay in a trained model that a recipe asks for.

        None for a dense model, and for one with a scalar head.

        Raises:
            SetupError: it is required, and the model is not a mixture of experts of a known type.
        """
        shape = route_shape_of(model_folder)
        if settings.routing_replay == "on" and (shape is None or isinstance(scorer, ValueScorer)):
            reason = (
                "a scalar head is trained"
                if shape
                else f"the model in {model_folder} is not a mixture of experts of type {', '.join(MODEL_TYPES)}"
            )
            raise SetupError(f'trainer.routing_replay = "on": {reason}; write "auto" or "off"')
        if settings.routing_replay == "off" or shape is None or isinstance(scorer, ValueScorer):
            return None
        replay = cls(scorer.model.base_model, shape)
        scorer.hidden_states.replays_routes = True
        return replay

    def _hand_over(
        self, place: int | None, router: Any, _attention: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Give the router of a block the experts of its layer, of which the attention before it knows nothing."""
        routes = named.get("routes")
        if router is not None:
            router.routes = None if routes is None else routes[:, :, place].flatten(0, 1)
        return arguments, {name: value for name, value in named.items() if name != "routes"}

    def _replay(
        self, router: Any, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Replace the experts, and their weights, in the output of a router.

        Logits, weights and experts of each token.
        """
        if (routes := router.routes) is None:
            return None
        logits, weights, own = output
        replayed = routes[:, :1] >= 0
        self._count(routes, own, replayed[:, 0])
        chosen = torch.where(replayed, routes.to(own.dtype), own)
        shares = logits.softmax(-1, dtype=torch.float32).gather(1, chosen)
        if router.norm_topk_prob:
            shares = shares / shares.sum(-1, keepdim=True)
        return logits, shares.to(weights.dtype), chosen

    @torch.no_grad()
    def _count(self, routes: Tensor, own: Tensor, replayed: Tensor) -> None:
        differing = (routes.sort(-1).values != own.sort(-1).values).any(-1) & replayed
        counts = torch.stack((differing.sum(), replayed.sum()))
        self._counts = counts if self._counts is None else self._counts + counts

    def reset(self) -> None:
        """Forget the counts."""
        self._counts = None

    def metrics(self, sequences: Sequence[TrainingSequence], ranks: Ranks, device: torch.device) -> dict[str, float]:
        """Metrics of the forward passes since the last reset, in which these sequences were computed.

        Returns:
            `routing_mismatch`: share of the replayed positions and layers for which the trainer's own router would have
                chosen other
            experts; `routing_replayed`: share of the positions of the sequences that have recorded experts.
        """
        counts = torch.zeros(2, dtype=torch.int64, device=device) if self._counts is None else self._counts
        differing, replayed = ranks.sum_everywhere(counts).tolist()
        recorded = sum(len(sequence.routes) for sequence in sequences) / self.shape.position_bytes
        return {
            "routing_mismatch": differing / max(replayed, 1),
            "routing_replayed": recorded / sum(len(sequence.token_ids) - 1 for sequence in sequences),
        }
