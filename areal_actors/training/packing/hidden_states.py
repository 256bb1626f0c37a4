"""Last hidden states of the positions that score a selected token, in any layout of the micro-batch.

Branches (see `prefix_tree`) are computed by the fused forward if it supports the model; else by the model's own forward
with our attention installed through Hugging Face's `AttentionInterface`. Where a probe shows that neither gives the
model's own hidden states and gradients, `resolve_sharing` allows only padded micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils.rnn import pad_sequence

from areal_actors.core.errors import EngineError
from areal_actors.training.compilation import compile_blocks, require_compiler
from areal_actors.training.packing.fused_forward import FusedForward
from areal_actors.training.packing.model_attention import install_attention, sharing_problem, windows_of
from areal_actors.training.packing.packed_tree import PackedTree
from areal_actors.training.packing.prefix_tree import build_prefix_tree
from areal_actors.training.packing.tensors import SHARING_DEVICES, MicroBatch, Sharing
from areal_actors.vision.embedding import VisionInputs
from areal_actors.vision.files import ImageFolder

TOLERANCE = 1e-3
"""Tolerance of the probe, relative to the largest entry: rounding stays far below it, a wrong attention mask far
above."""
PROBE_IDS = ((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 0, 6, 3), (1, 2, 3, 4, 5, 7), (2, 0))
"""Three sequences with a common prefix, and one without."""
PROBE_STARTS, PROBE_STEP = (0.5, 0.25, 0.75), 37
"""Place of the first of these ids in the vocabulary, as a share of it, and the distance of the others. The lowest ids
are special tokens in most models, and after a special token that no text contains, activations may be so large that
rounding exceeds the tolerance."""
PROBE_WEIGHTS = 4
"""Number of parameters whose gradient is compared: the first of the model, which depend on all layers after them."""

logger = structlog.get_logger(__name__)


class HiddenStates:
    """The base model of a causal language model of Hugging Face, run on micro-batches in `dtype`."""

    def __init__(self, base_model: Any, dtype: torch.dtype = torch.float32) -> None:
        self.base_model = base_model
        self.dtype = dtype
        self._fused = FusedForward(base_model) if FusedForward.supports(base_model) else None
        self._vision: VisionInputs | None = None
        self.sharing_problem = "" if self._fused is not None else sharing_problem(base_model.config)
        """The reason why the model does not support micro-batches with branches; found out by `shares_prefixes` at the
        latest."""
        self.replays_routes = False
        """True if the blocks take the routes of a micro-batch; see `RoutingReplay`."""

    def __call__(self, batch: MicroBatch) -> Tensor:
        """Hidden states `[tokens, hidden]`, with gradient.

        Raises:
            EngineError: the micro-batch has branches, and the model does not support them.
        """
        if batch.branches is not None:
            self._require_sharing()
        with torch.autocast(batch.token_ids.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            if batch.images:
                return self._forward_images(batch)[0].index_select(0, batch.positions)
            routes = batch.routes if self.replays_routes else None
            if batch.branches is None:
                return self.forward_ids(batch.token_ids, routes).flatten(0, 1).index_select(0, batch.positions)
            outputs = batch.branches.outputs if self._fused is not None else None
            positions = batch.positions if outputs is None else outputs.indices[batch.positions]
            return self._forward_branches(batch.token_ids[0], batch.branches, routes).index_select(0, positions)

    def compile(self) -> None:
        """Compile the blocks.

        To be called after `resolve_sharing`, whose small inputs would be compiled for themselves.

        Raises:
            SetupError: the model has no list of blocks, or `torch.compile` does not work here.
        """
        require_compiler(next(self.base_model.parameters()).device)
        compile_blocks(self.base_model)
        if self._fused is not None:
            self._fused.compile()

    def resolve_sharing(self, wanted: Sharing) -> Sharing:
        """Returns the `sharing` for `make_micro_batches`: the recipe's if the model supports it, else `off`.

        Raises:
            EngineError: the recipe requires prefix sharing and the model does not support it.
        """
        if wanted == "on":
            self._require_sharing()
            return "on"
        device = next(self.base_model.parameters()).device.type
        if wanted == "off" or device not in SHARING_DEVICES:
            return "off"
        if self.shares_prefixes:
            return "auto"
        logger.info("rows are padded, not packed", model=type(self.base_model).__name__, because=self.sharing_problem)
        return "off"

    @cached_property
    def shares_prefixes(self) -> bool:
        """True if the model supports micro-batches with branches; probed on first use, because it takes two passes."""
        return not self.sharing_problem and self._probe()

    def _require_sharing(self) -> None:
        if not self.shares_prefixes:
            raise EngineError(
                f'trainer.prefix_sharing = "on": {type(self.base_model).__name__} cannot compute rows that share their'
                f' prefixes, because {self.sharing_problem}; set it to "auto" or "off"'
            )

    def forward_ids(self, token_ids: Tensor, routes: Tensor | None = None) -> Tensor:
        """Hidden states `[rows, width, hidden]` of token ids `[rows, width]`.

        Padding is on the right and needs no mask.
        """
        hidden: Tensor = self.base_model(
            input_ids=token_ids, use_cache=False, **_route_arguments(routes)
        ).last_hidden_state
        return hidden

    def _forward_images(self, batch: MicroBatch) -> Tensor:
        """Hidden states `[1, width, hidden]` of a row with images.

        Raises:
            EngineError: the model has no vision, is split over ranks, or a file is missing or damaged.
        """
        if self._vision is None:
            if any(isinstance(parameter, DTensor) for parameter in self.base_model.parameters()):
                raise EngineError("rows with images are trained on one rank only; set trainer.ranks = 1")
            self._vision = VisionInputs(self.base_model)
        token_ids, width = batch.token_ids, batch.token_ids.shape[1]
        images = [image for image in batch.images if image.start < width]
        embedded = self._vision.embed(token_ids, images, ImageFolder(Path(batch.image_folder)))
        positions = self._vision.positions(width, images).to(token_ids.device)
        hidden: Tensor = self.base_model(
            inputs_embeds=embedded, position_ids=positions, use_cache=False
        ).last_hidden_state
        return hidden

    def _forward_branches(self, token_ids: Tensor, branches: PackedTree, routes: Tensor | None = None) -> Tensor:
        """`[tokens, hidden]` of token ids `[tokens]`.

        `[outputs, hidden]` if the branches have `outputs` and the forward is fused.
        """
        if self._fused is not None:
            return self._fused(token_ids, branches)
        hidden: Tensor = self.base_model(
            input_ids=token_ids[None],
            position_ids=branches.depths[None],
            use_cache=False,
            branches=branches,
            **_route_arguments(routes),
        ).last_hidden_state[0]
        return hidden

    def _probe(self) -> bool:
        """True if prefix sharing gives the same hidden states and the same gradient as without, for some token ids.

        A wrong mask differs for all of them; a sound one only where activations are so large that rounding shows.
        """
        if self._fused is None:
            install_attention(self.base_model)
        vocabulary = self.base_model.config.get_text_config().vocab_size
        agree = getattr(self.base_model, "agree", bool)
        for start in PROBE_STARTS:
            sequences = [
                np.array([(int(start * vocabulary) + PROBE_STEP * number) % vocabulary for number in ids])
                for ids in PROBE_IDS
            ]
            # Only the last pipeline stage has hidden states, but all stages must lay out their micro-batches alike.
            if agree(self._computes_alike(sequences)):
                self.sharing_problem = ""
                return True
        self.sharing_problem = self.sharing_problem or "another pipeline stage cannot compute it"
        return False

    def _computes_alike(self, sequences: Sequence[NDArray[np.int64]]) -> bool:
        """Compare both computations of these sequences; if they differ, `sharing_problem` has the reason."""
        device = next(self.base_model.parameters()).device
        tree = build_prefix_tree(sequences)
        token_ids, branches = torch.from_numpy(tree.token_ids).to(device), PackedTree.of(tree, device)
        padded = pad_sequence([torch.from_numpy(ids) for ids in sequences], batch_first=True).to(device)
        slots = torch.empty(len(token_ids), dtype=torch.int64, device=device)
        for row, places in enumerate(tree.token_positions):
            slots[torch.from_numpy(places)] = torch.arange(len(places), device=device) + row * padded.shape[1]
        try:
            sharded = any(isinstance(parameter, DTensor) for parameter in self.base_model.parameters())
            with torch.set_grad_enabled(not sharded):
                shared = _outputs_and_gradients(self.base_model, self._forward_branches(token_ids, branches))
                unshared = _outputs_and_gradients(self.base_model, self.forward_ids(padded).flatten(0, 1)[slots])
        except (
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:  # the model's forward does not take our arguments, or a kernel is missing
            self.sharing_problem = f"it is not computed: {error}"
            return False
        if self._fused is None and set(branches.windows) != windows_of(self.base_model.config):
            self.sharing_problem = "it does not give the windows of its layers to its attention function"
            return False
        if all(_close(ours, own) for ours, own in zip(shared, unshared, strict=True)):
            return True
        self.sharing_problem = "its hidden states or gradients are others then"
        return False


def _route_arguments(routes: Tensor | None) -> dict[str, Tensor]:
    return {} if routes is None else {"routes": routes}


def _outputs_and_gradients(base_model: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    """Hidden states and, unless the weights are sharded, a gradient: of a weighted sum by the first trained weights."""
    if not hidden.requires_grad:
        return (hidden,)
    weights = torch.linspace(-1, 1, hidden.numel(), device=hidden.device).view_as(hidden)
    text = getattr(base_model, "language_model", base_model)
    first = [parameter for parameter in text.parameters() if parameter.requires_grad][:PROBE_WEIGHTS]
    return hidden.detach(), *torch.autograd.grad((hidden * weights).sum(), first)


def _close(ours: Tensor, own: Tensor) -> bool:
    return float((ours - own).abs().max()) <= TOLERANCE * float(own.abs().max())
