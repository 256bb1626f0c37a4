"""Attention over chains against attention over every sequence by itself."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

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
    """Chains that attend to themselves in pieces, one behind another's beginning."""
    ids = draw.integers(0, 50, 450)
    return [ids, np.concatenate([ids[:170], draw.integers(0, 50, 230)]), ids[:200]]


def columns(tokens, dtype=torch.float32, heads=4, kv_heads=2):
    torch.manual_seed(0)
    return [torch.randn(tokens, count, 8, dtype=dtype, requires_grad=True) for count in (heads, kv_heads, kv_heads)]


def one_by_one(parts, tree, weights):
    """Outputs and gradients of plain causal attention over every sequence; a shared token's output counts where it is first met."""
    met = set()
    outputs, loss = torch.zeros_like(parts[0]), 0.0
    for places in tree.token_positions:
        index = torch.from_numpy(places)
        batch = [part[index].transpose(0, 1)[None] for part in parts]
        out = scaled_dot_product_attention(*batch, is_causal=True, scale=SCALE, enable_gqa=True)[0].transpose(0, 1)
        fresh = torch.tensor([token not in met for token in places.tolist()])
        met |= set(places.tolist())
        outputs = outputs.index_copy(0, index[fresh], out[fresh])
        loss = loss + (out * weights[index] * fresh[:, None, None]).sum()
    return outputs.detach(), torch.autograd.grad(loss, parts)


@pytest.fixture(params=["planned", "masked"])
def on_each_device(request, monkeypatch):
    """The calls of a CPU, and the single one of other devices, with all scores at once."""
    if request.param == "masked":
        monkeypatch.setattr(packed_tree, "PLANNED_DEVICES", ())


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("kind", [group, branches, bits, long])
def test_outputs_and_gradients_are_those_of_the_sequences_by_themselves(kind):
    tree = build_prefix_tree(kind(np.random.default_rng(0)))
    chains = PackedTree.of(tree, torch.device("cpu"))
    parts = columns(len(tree.token_ids))
    weights = torch.randn_like(parts[0])
    out = attend(*parts, chains, SCALE)
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
    chains = PackedTree.of(tree, torch.device("cpu"), read)
    queries, keys, values = columns(tokens)
    weights = torch.zeros_like(queries).index_copy(
        0, torch.from_numpy(np.unique(read)), torch.randn(len(np.unique(read)), *queries.shape[1:])
    )
    wanted_out, wanted = one_by_one((queries, keys, values), tree, weights)
    if chains.outputs is None:
        assert kind in (branches, bits)
        return
    at = chains.outputs.tokens
    assert set(read.tolist()) <= set(at.tolist())
    assert torch.equal(at[chains.outputs.indices[torch.from_numpy(read)]], torch.from_numpy(read))
    out = attend(queries[at], keys, values, chains, SCALE, chains.outputs)
    found = torch.autograd.grad((out * weights[at]).sum(), (queries, keys, values))
    torch.testing.assert_close(out.detach(), wanted_out[at], atol=2e-6, rtol=1e-5)
    for ours, own in zip(found, wanted, strict=True):
        assert (ours - own).norm() < 1e-6 * own.norm()


@pytest.mark.parametrize("heads", [2, 4])
def test_the_gradient_is_that_of_numeric_differentiation(heads):
    tree = build_prefix_tree(group(np.random.default_rng(1), prompt=6, members=2, alphabet=9))
    chains = PackedTree.of(tree, torch.device("cpu"))
    parts = columns(len(tree.token_ids), torch.float64, heads=heads)
    assert torch.autograd.gradcheck(lambda *given: attend(*given, chains, SCALE), parts, fast_mode=True)


def test_scores_far_apart_neither_overflow_nor_spoil_the_gradient():
    tree = build_prefix_tree(bits(np.random.default_rng(2)))
    chains = PackedTree.of(tree, torch.device("cpu"))
    parts = [(300 * part).detach().requires_grad_() for part in columns(len(tree.token_ids))]
    out = attend(*parts, chains, SCALE)
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(out.sum(), parts))


def test_padding_between_chains_is_small():
    draw = np.random.default_rng(3)
    chains = PackedTree.of(build_prefix_tree([draw.integers(0, 50, length) for length in draw.integers(10, 300, 64)]), torch.device("cpu"))
    slots, tokens = (sum(len(getattr(own, name)) for own, _ in chains.plan.buckets) for name in ("filled", "tokens"))
    assert tokens == len(chains.depths)
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
    return [*long(draw), *(np.concatenate([draw.integers(0, 50, 300)] * 2) for _ in range(2)), *group(draw, prompt=200, members=6)]


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
