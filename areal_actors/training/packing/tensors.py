"""Rows to tensors: micro-batches under a token budget, with the positions that score each selected token.

Logits at position t score token t + 1. Only positions that score a selected token are listed, so no logits are computed
for prompts or padding, the first token of a row is never selected, and positions after the last selected token are not
fed to the model. A micro-batch is either padded (rows of similar length; padding is on the right, where a causal model
never attends, so no attention mask is needed) or packed into branches (no padding, and prefixes shared by the rows of a
group, or by groups with one system prompt, occur once).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.core.errors import EngineError
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import ImageRef, TrainingSequence
from areal_actors.training.packing.packed_tree import PackedTree
from areal_actors.training.packing.prefix_tree import (
    PrefixTree,
    build_prefix_tree,
    common_prefix_length,
    lexicographic_order,
    pack_trees,
    shared_tokens,
)
from areal_actors.training.packing.row_routes import RowRoutes

TokenSelector = Callable[[TrainingSequence], NDArray[np.bool_]]
"""Selects tokens of a row: returns bool `[n]`."""
Sharing = Literal["auto", "on", "off"]
"""Compute the shared prefixes of a group once: on a CPU, always, or never."""
SHARING_DEVICES = ("cpu",)
"""Devices with branches under `auto`: a CPU computes them faster than padding even without common prefixes; elsewhere
nothing is measured."""
MIN_COMMON_PREFIX = 64
"""Minimum common prefix of two groups to be joined, in tokens; with fewer, the additional call costs what they save."""


class MicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of a step; columns per selected token, row after row.

    `token_index` finds the step's other columns (`StepTokens`).
    """

    token_ids: Tensor
    """int64 `[rows, width]`, padded with 0 on the right; int64 `[1, tokens]` with branches."""
    positions: Tensor
    """int64 `[tokens]`: index in the flattened `token_ids` of the logits that score the token."""
    labels: Tensor
    """int64 `[tokens]`: the token itself."""
    token_index: Tensor
    """int64 `[tokens]`: index of the token among the selected tokens of all rows, row after row, position after
    position."""
    temperatures: Tensor | None = None
    """float32 `[tokens]`: divisors of the logits that score the tokens, NaN for the recipe's temperature; None if all
    have it."""
    sequence_tokens: int
    """Tokens of the rows up to the last scoring position: the number computed without sharing or padding."""
    branches: PackedTree | None = None
    """Attention layout of packed `token_ids`; None if padded."""
    routes: Tensor | None = None
    """int16 `[rows, width, layers, top_k]`: experts of each of `token_ids`, -1 where the router chooses; None if it
    always does."""
    images: tuple[ImageRef, ...] = ()
    """Images of the only row of this micro-batch; empty for rows without."""
    image_folder: str = ""
    """Folder of the images' files."""

    @property
    def computed_tokens(self) -> int:
        """Tokens fed to the model, including padding."""
        return self.token_ids.numel()


def trained_tokens(row: TrainingSequence) -> NDArray[np.bool_]:
    """Selects the tokens that the loss trains."""
    return row.loss_mask


def make_micro_batches(
    rows: Sequence[TrainingSequence],
    indices: Sequence[int],
    budget: int,
    device: torch.device,
    selected: TokenSelector = trained_tokens,
    *,
    whole_groups: bool = False,
    sharing: Sharing = "off",
    routes: RouteShape | None = None,
) -> list[MicroBatch]:
    """Cut rows into micro-batches, each of at most `budget` computed tokens.

    Padded rows are sorted, longest first, to minimize padding. Rows without a selected token are left out. A row longer
    than the budget gets a micro-batch of its own, and so does a row with images: equal tokens may stand for different
    images.

    Args:
        rows: all rows of the step.
        indices: indices of the rows to include.
        budget: computed tokens per micro-batch.
        device: device of the tensors.
        selected: selects the tokens to score.
        whole_groups: keep the rows of a group in one micro-batch; a group over the budget gets one of its own.
        sharing: compute the shared prefixes of a group once, and a long common prefix of several groups (a system
            prompt) once per micro-batch. `HiddenStates.resolve_sharing` gives what the model supports.
        routes: mixtures of experts of the model, to replay the rows' routes. A prefix is then shared as far as its
            routes are the same.

    Raises:
        EngineError: `whole_groups` is set, and a row has images.
    """
    scored = [np.flatnonzero(selected(row)[1:]) for row in rows]
    builder = _MicroBatchBuilder(
        rows, scored, device, RowRoutes(rows, routes) if routes and any(row.routes for row in rows) else None
    )
    pictured = [index for index in indices if rows[index].images and len(scored[index])]
    if pictured:
        if whole_groups:
            raise EngineError(
                "this algorithm compares the rows of a group in one micro-batch, and rows with images have one each;"
                " choose another"
            )
        indices = [index for index in indices if not rows[index].images]
    groups: dict[int, list[int]] = {}
    for index in sorted(
        (index for index in indices if len(scored[index])), key=lambda index: (-builder.width(index), index)
    ):
        groups.setdefault(rows[index].group, []).append(index)
    packs = sharing == "on" or (sharing == "auto" and device.type in SHARING_DEVICES)
    shared, unshared = (list(groups.values()), []) if packs else ([], list(groups.values()))
    if not whole_groups:
        shared = [members for group in shared for members in builder.split_to_budget(group, budget)]
        unshared = [
            [index]
            for index in sorted((index for group in unshared for index in group), key=lambda i: (-builder.width(i), i))
        ]
    shared, trees = builder.build_trees(shared, budget)
    packed = [
        builder.pack_tree([index for unit in units for index in shared[unit]], tree)
        for units, tree in pack_trees(trees, budget)
    ]
    padded = [builder.pad_rows(members) for members in builder.group_by_length(unshared, budget)]
    return packed + padded + [builder.pad_rows([index]) for index in pictured]


class _MicroBatchBuilder:
    """Makes micro-batches of rows, given the positions that score."""

    def __init__(
        self,
        rows: Sequence[TrainingSequence],
        scored: Sequence[NDArray[np.intp]],
        device: torch.device,
        routes: RowRoutes | None,
    ) -> None:
        self._rows = rows
        self._routes = routes
        self._scored = scored
        self._device = device
        self._first = np.cumsum([0, *map(len, scored)])

    def width(self, index: int) -> int:
        """Tokens of a row up to the last scoring position."""
        return int(self._scored[index][-1]) + 1

    def ids(self, index: int) -> NDArray[np.int64]:
        """Token ids of a row up to the last scoring position."""
        return self._rows[index].token_ids[: self.width(index)]

    def keys(self, index: int) -> NDArray[np.int64]:
        """Numbers that are equal in two rows as long as their token ids are, and their routes if they are replayed."""
        return self.ids(index) if self._routes is None else self._routes.keys(index, self.width(index))

    def split_to_budget(self, group: list[int], budget: int) -> Iterable[list[int]]:
        """Halve the group recursively until each half is within the budget."""
        tokens = sum(map(self.width, group))
        if (
            len(group) == 1
            or tokens <= budget
            or tokens - shared_tokens([self.keys(index) for index in group]) <= budget
        ):
            yield group
        else:
            yield from self.split_to_budget(group[: len(group) // 2], budget)
            yield from self.split_to_budget(group[len(group) // 2 :], budget)

    def build_trees(self, groups: Sequence[list[int]], budget: int) -> tuple[list[list[int]], list[PrefixTree]]:
        """Join groups with a common prefix (a system prompt) while they are within the budget.

        Returns them and a tree for each.
        """
        alone = [build_prefix_tree([self.keys(index) for index in group]) for group in groups]
        joined: list[list[int]] = []
        room = before = 0
        for number in lexicographic_order([self.keys(group[0]) for group in groups]):
            common = common_prefix_length(self.keys(groups[before][0]), self.keys(groups[number][0])) if joined else 0
            own = len(alone[number].token_ids)
            if common >= MIN_COMMON_PREFIX and own - common <= room:
                joined[-1].append(number)
                room -= own - common
            else:
                joined.append([number])
                room = budget - own
            before = number
        trees: list[tuple[list[int], PrefixTree]] = []
        for numbers in joined:
            members = [index for number in numbers for index in groups[number]]
            tree = (
                alone[numbers[0]] if len(numbers) == 1 else build_prefix_tree([self.keys(index) for index in members])
            )
            # Forks are aligned and may lie a few tokens before the common prefix ends, so the tree may exceed the
            # estimate.
            fits = len(numbers) == 1 or len(tree.token_ids) <= budget
            trees += [(members, tree)] if fits else [(groups[number], alone[number]) for number in numbers]
        return [members for members, _ in trees], [tree for _, tree in trees]

    def group_by_length(self, units: Sequence[list[int]], budget: int) -> list[list[int]]:
        """Join units, the longest first, while the padded tokens are within the budget."""
        batches: list[list[int]] = []
        for unit in units:
            if batches and (len(batches[-1]) + len(unit)) * self.width(batches[-1][0]) <= budget:
                batches[-1] += unit
            else:
                batches.append(list(unit))
        return batches

    def pad_rows(self, members: Sequence[int]) -> MicroBatch:
        """A padded micro-batch of these rows, the longest first."""
        width = self.width(members[0])
        token_ids = np.zeros((len(members), width), dtype=np.int64)
        for place, index in enumerate(members):
            token_ids[place, : self.width(index)] = self.ids(index)
        positions = np.concatenate([self._scored[index] + place * width for place, index in enumerate(members)])
        batch = self._micro_batch(members, token_ids, positions, None)
        if self._routes is None:
            return batch
        routes = self._routes.lay_out(
            token_ids.shape, [(index, np.arange(width) + place * width) for place, index in enumerate(members)]
        )
        return msgspec.structs.replace(batch, routes=torch.from_numpy(routes).to(self._device))

    def pack_tree(self, members: Sequence[int], tree: PrefixTree) -> MicroBatch:
        """A packed micro-batch of the rows of a tree, in its order."""
        positions = np.concatenate(
            [places[self._scored[index]] for places, index in zip(tree.token_positions, members, strict=True)]
        )
        token_ids, branches = tree.token_ids[None], PackedTree.of(tree, self._device, positions)
        if self._routes is None:
            return self._micro_batch(members, token_ids, positions, branches)
        token_ids = np.empty_like(token_ids)
        for places, index in zip(tree.token_positions, members, strict=True):
            token_ids[0, places] = self.ids(index)
        routes = self._routes.lay_out(token_ids.shape, zip(members, tree.token_positions, strict=True))
        batch = self._micro_batch(members, token_ids, positions, branches)
        return msgspec.structs.replace(batch, routes=torch.from_numpy(routes).to(self._device))

    def _micro_batch(
        self,
        members: Sequence[int],
        token_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        branches: PackedTree | None,
    ) -> MicroBatch:
        def tensor(array: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(array).to(self._device)

        def column(of: Callable[[int, NDArray[np.intp]], NDArray[np.generic]]) -> Tensor:
            return tensor(np.concatenate([of(index, self._scored[index]) for index in members]))

        stated = any(call.temperature is not None for index in members for call in self._rows[index].calls)
        return MicroBatch(
            token_ids=tensor(token_ids),
            positions=tensor(positions),
            labels=column(lambda index, at: self._rows[index].token_ids[at + 1]),
            token_index=column(lambda index, at: np.arange(len(at), dtype=np.int64) + self._first[index]),
            temperatures=column(lambda index, at: _temperatures(self._rows[index])[at + 1]) if stated else None,
            sequence_tokens=sum(map(self.width, members)),
            branches=branches,
            images=self._rows[members[0]].images,
            image_folder=self._rows[members[0]].image_folder,
        )


def _temperatures(row: TrainingSequence) -> NDArray[np.float32]:
    """The temperature at which each token of a row was sampled, NaN where it is the recipe's: float32 `[n]`."""
    column = np.full(len(row.token_ids), np.nan, dtype=np.float32)
    for call in row.calls:
        if call.temperature is not None:
            column[call.start : call.end] = call.temperature
    return column
