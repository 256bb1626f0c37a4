"""Attention over branches against attention over every sequence by itself."""

import numpy as np
import pytest
import torch

from areal_actors.training.packing import packed_tree
from areal_actors.training.packing.block_mask import BLOCK, block_mask, depth_first_intervals
from areal_actors.training.packing.packed_tree import PackedTree
from areal_actors.training.packing.prefix_tree import build_prefix_tree
from areal_actors.training.packing.tree_attention import attend

SCALE = 0.3


def group(draw, prompt=30, members=5, alphabet=50):
    shared = draw.integers(0, alphabet, prompt)
    return [np.concatenate([shared, draw.integers(0, alphabet, draw.integers(1, 25))]) for _ in range(members)]


def branches(draw):
    """An episode whose every turn goes on from the history without the answer before."""
    history = draw.integers(0, 50, 80)
    return [np.concatenate([history[:length], draw.integers(0, 50, 7)]) for length in (10, 30, 30, 55, 80)]


def bits(draw):
    return [draw.integers(0, 2, draw.integers(1, 40)) for _ in range(12)]


def long(draw):
    """Branches that attend to themselves in tiles, one behind another's beginning."""
    ids = draw.integers(0, 50, 450)
    return [ids, np.concatenate([ids[:170], draw.integers(0, 50, 230)]), ids[:200]]


def columns(tokens, dtype=torch.float32, heads=4, kv_heads=2):
    torch.manual_seed(0)
    return [torch.randn(tokens, count, 8, dtype=dtype, requires_grad=True) for count in (heads, kv_heads, kv_heads)]


def plain_attention(query, key, value, window=None, sinks=None):
    """Causal attention `[1, heads, tokens, size]` with all scores, over the last `window` keys, and a sink for each
    head."""
    places = torch.arange(query.shape[2])
    distances = places[:, None] - places
    key, value = (column.repeat_interleave(query.shape[1] // column.shape[1], 1) for column in (key, value))
    scores = (query @ key.transpose(-1, -2) * SCALE).masked_fill(
        (distances < 0) | (distances >= (window or len(places))), -torch.inf
    )
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., : len(places)] @ value


def one_by_one(parts, tree, weights, window=None, sinks=None):
    """Outputs and gradients of plain causal attention over every sequence; a shared token's output counts where it is
    first met."""
    met = set()
    outputs, loss = torch.zeros(*parts[0].shape[:2], parts[2].shape[-1]), 0.0
    for places in tree.token_positions:
        index = torch.from_numpy(places)
        batch = [part[index].transpose(0, 1)[None] for part in parts]
        out = plain_attention(*batch, window, sinks)[0].transpose(0, 1)
        fresh = torch.tensor([token not in met for token in places.tolist()])
        met |= set(places.tolist())
        outputs = outputs.index_copy(0, index[fresh], out[fresh])
        loss = loss + (out * weights[index] * fresh[:, None, None]).sum()
    return outputs.detach(), torch.autograd.grad(loss, parts if sinks is None else [*parts, sinks])


@pytest.fixture(params=["planned", "masked"])
def on_each_device(request, monkeypatch):
    """The calls of a CPU, and the single one of other devices, with all scores at once."""
    if request.param == "masked":
        monkeypatch.setattr(packed_tree, "PLANNED_DEVICES", ())


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("kind", [group, branches, bits, long])
def test_outputs_and_gradients_are_those_of_the_sequences_by_themselves(kind):
    tree = build_prefix_tree(kind(np.random.default_rng(0)))
    packed = PackedTree.of(tree, torch.device("cpu"))
    parts = columns(len(tree.token_ids))
    weights = torch.randn_like(parts[0])
    out = attend(*parts, packed.plan, SCALE)
    found = torch.autograd.grad((out * weights).sum(), parts)
    wanted_out, wanted = one_by_one(parts, tree, weights)
    torch.testing.assert_close(out.detach(), wanted_out, atol=2e-6, rtol=1e-5)
    for ours, own in zip(found, wanted, strict=True):
        assert (ours - own).norm() < 1e-6 * own.norm()


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("kind", [group, branches, bits, long])
def test_queries_of_what_is_read_alone_have_their_outputs_and_gradients(kind):
    draw = np.random.default_rng(4)
    tree = build_prefix_tree(kind(draw))
    tokens = len(tree.token_ids)
    read = draw.permutation(
        np.concatenate([np.flatnonzero(np.arange(tokens) % 90 > 60), *(places[-1:] for places in tree.token_positions)])
    )
    packed = PackedTree.of(tree, torch.device("cpu"), read)
    queries, keys, values = columns(tokens)
    weights = torch.zeros_like(queries).index_copy(
        0, torch.from_numpy(np.unique(read)), torch.randn(len(np.unique(read)), *queries.shape[1:])
    )
    wanted_out, wanted = one_by_one((queries, keys, values), tree, weights)
    if packed.outputs is None:
        assert kind in (branches, bits)
        return
    at = packed.outputs.tokens
    assert set(read.tolist()) <= set(at.tolist())
    assert torch.equal(at[packed.outputs.indices[torch.from_numpy(read)]], torch.from_numpy(read))
    out = attend(queries[at], keys, values, packed.outputs.plan, SCALE)
    found = torch.autograd.grad((out * weights[at]).sum(), (queries, keys, values))
    torch.testing.assert_close(out.detach(), wanted_out[at], atol=2e-6, rtol=1e-5)
    for ours, own in zip(found, wanted, strict=True):
        assert (ours - own).norm() < 1e-6 * own.norm()


@pytest.mark.parametrize("heads", [2, 4])
def test_the_gradient_is_that_of_numeric_differentiation(heads):
    tree = build_prefix_tree(group(np.random.default_rng(1), prompt=6, members=2, alphabet=9))
    packed = PackedTree.of(tree, torch.device("cpu"))
    parts = columns(len(tree.token_ids), torch.float64, heads=heads)
    assert torch.autograd.gradcheck(lambda *given: attend(*given, packed.plan, SCALE), parts, fast_mode=True)


def test_scores_far_apart_neither_overflow_nor_spoil_the_gradient():
    tree = build_prefix_tree(bits(np.random.default_rng(2)))
    packed = PackedTree.of(tree, torch.device("cpu"))
    parts = [(300 * part).detach().requires_grad_() for part in columns(len(tree.token_ids))]
    out = attend(*parts, packed.plan, SCALE)
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(out.sum(), parts))


def test_padding_between_branches_is_small():
    draw = np.random.default_rng(3)
    packed = PackedTree.of(
        build_prefix_tree([draw.integers(0, 50, length) for length in draw.integers(10, 300, 64)]), torch.device("cpu")
    )
    slots, tokens = (sum(len(getattr(own, name)) for own, _ in packed.plan.buckets) for name in ("filled", "tokens"))
    assert tokens == len(packed.depths)
    assert slots < 1.2 * tokens


def visible_pairs(tree):
    """bool `[tokens, tokens]`: the keys that each token sees, from the sequences."""
    seen = np.zeros((len(tree.token_ids),) * 2, dtype=bool)
    for places in tree.token_positions:
        for at, token in enumerate(places):
            seen[token, places[: at + 1]] = True
    return seen


def listed(counts, numbers):
    """bool `[rows, columns]`: the blocks that a mask lists."""
    places = torch.arange(numbers.shape[-1]).expand_as(numbers[0, 0]) < counts[0, 0][:, None]
    return torch.zeros_like(places).scatter_(1, numbers[0, 0].long(), places)


def many_long(draw):
    """Turns that go on from one another's middle, and a group, over several blocks."""
    return [
        *long(draw),
        *(np.concatenate([draw.integers(0, 50, 300)] * 2) for _ in range(2)),
        *group(draw, prompt=200, members=6),
    ]


@pytest.mark.parametrize("kind", [group, branches, bits, long, many_long])
@pytest.mark.parametrize("some", [False, True])
def test_a_mask_shows_what_the_sequences_show_in_blocks_that_it_lists(kind, some):
    draw = np.random.default_rng(7)
    tree = build_prefix_tree(kind(draw))
    tokens = len(tree.token_ids)
    queries = np.flatnonzero(draw.random(tokens) < 0.6) if some else np.arange(tokens)
    mask = block_mask(tree, torch.device("cpu"), queries if some else None)
    asking, keys = torch.arange(len(queries))[:, None], torch.arange(tokens)[None]
    wanted = torch.from_numpy(visible_pairs(tree)[queries])
    assert torch.equal(mask.mask_mod(torch.tensor(0), torch.tensor(0), asking, keys), wanted)
    rows, columns = -(-len(queries) // BLOCK), -(-tokens // BLOCK)
    padded = torch.zeros(rows * BLOCK, columns * BLOCK, dtype=torch.bool)
    padded[: len(queries), :tokens] = wanted
    pairs = padded.view(rows, BLOCK, columns, BLOCK).sum((1, 3))
    assert torch.equal(listed(mask.full_kv_num_blocks, mask.full_kv_indices), pairs == BLOCK * BLOCK)
    assert torch.equal(listed(mask.kv_num_blocks, mask.kv_indices), (pairs > 0) & (pairs < BLOCK * BLOCK))


def test_the_descendants_of_a_token_are_an_interval_of_the_depth_first_order():
    tree = build_prefix_tree(many_long(np.random.default_rng(8)))
    entries, exits = depth_first_intervals(tree.groups, len(tree.token_ids))
    assert sorted(entries) == list(range(len(entries)))
    assert (exits - entries == visible_pairs(tree).sum(0)).all()


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("window", [1, 2, 3, 9, 150, 449, 451])
@pytest.mark.parametrize("kind", [group, branches, bits, long])
def test_within_a_window_they_are_those_of_the_sequences_by_themselves(kind, window):
    tree = build_prefix_tree(kind(np.random.default_rng(0)))
    packed = PackedTree.of(tree, torch.device("cpu"))
    parts = columns(len(tree.token_ids))
    weights = torch.randn_like(parts[0])
    out = attend(*parts, packed.plan_for_window(window), SCALE)
    found = torch.autograd.grad((out * weights).sum(), parts)
    wanted_out, wanted = one_by_one(parts, tree, weights, window)
    torch.testing.assert_close(out.detach(), wanted_out, atol=2e-6, rtol=1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 9, 150])
@pytest.mark.parametrize("kind", [group, branches, long])
def test_sinks_take_their_share_and_have_a_gradient(kind, window):
    tree = build_prefix_tree(kind(np.random.default_rng(0)))
    packed = PackedTree.of(tree, torch.device("cpu"))
    parts = columns(len(tree.token_ids))
    weights, sinks = torch.randn_like(parts[0]), torch.tensor([-1.0, 0.0, 0.5, 2.0], requires_grad=True)
    out = attend(*parts, packed.plan_for_window(window), SCALE, sinks=sinks)
    found = torch.autograd.grad((out * weights).sum(), [*parts, sinks])
    wanted_out, wanted = one_by_one(parts, tree, weights, window, sinks)
    torch.testing.assert_close(out.detach(), wanted_out, atol=2e-6, rtol=1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("size", [4, 12])
def test_heads_of_values_may_have_another_size(size):
    tree = build_prefix_tree(long(np.random.default_rng(0)))
    packed = PackedTree.of(tree, torch.device("cpu"))
    parts = columns(len(tree.token_ids), kv_heads=4)
    parts[2] = torch.randn(len(tree.token_ids), 4, size, requires_grad=True)
    weights = torch.randn(len(tree.token_ids), 4, size)
    out = attend(*parts, packed.plan, SCALE)
    found = torch.autograd.grad((out * weights).sum(), parts)
    wanted_out, wanted = one_by_one(parts, tree, weights)
    torch.testing.assert_close(out.detach(), wanted_out, atol=2e-6, rtol=1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 100, 128, 129, 200, 500])
def test_blocks_outside_a_window_are_skipped_and_those_within_are_not_masked(window):
    tree = build_prefix_tree(long(np.random.default_rng(0)))
    mask = block_mask(tree, torch.device("cpu"), window=window)
    tokens = len(tree.token_ids)
    places, zero = torch.arange(tokens), torch.zeros((), dtype=torch.int64)
    visible = mask.mask_mod(zero, zero, places[:, None], places)
    depths = torch.from_numpy(tree.depths)
    assert (depths[:, None] - depths)[visible].max() == min(window - 1, int(depths.max()))
    padded = torch.zeros(-(-tokens // BLOCK) * BLOCK, -(-tokens // BLOCK) * BLOCK, dtype=torch.bool)
    padded[:tokens, :tokens] = visible
    blocks = padded.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).transpose(1, 2).flatten(2)
    computed = mask.to_dense()[0, 0].bool()
    assert not (blocks.any(-1) & ~computed).any()
    for row in range(len(blocks)):
        whole = mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]]
        assert blocks[row, whole.long()].all()
