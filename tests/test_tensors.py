"""Rows to micro-batches: every trained token is scored exactly once, by the position before it."""

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_actors.core.values import SequenceCall, TrainingSequence
from areal_actors.training.packing.prefix_tree import first_fit_decreasing
from areal_actors.training.packing.tensors import make_micro_batches

CPU = torch.device("cpu")
WEIGHTS = st.lists(st.integers(0, 5000), max_size=60)


def row(prompt, completion, *, mask=None, group=0, reward=0.0, version=0):
    """A row of these token ids, of which the completion's are trained by default."""
    sampled = np.array([False] * len(prompt) + [True] * len(completion))
    return TrainingSequence(
        token_ids=np.array([*prompt, *completion], dtype=np.int64),
        loss_mask=sampled if mask is None else np.array(mask),
        logprobs=np.where(sampled, -0.1 * np.arange(len(sampled)), 0).astype(np.float32),
        versions=np.where(sampled, version, -1).astype(np.int32),
        group=group,
        reward=reward,
        truncated=False,
    )


def rows_in(batch, rows):
    """Index of the row of each token of a micro-batch."""
    trained = [int(each.loss_mask[1:].sum()) for each in rows]
    return np.repeat(np.arange(len(rows)), trained)[batch.token_index.numpy()].tolist()


def test_logits_at_a_position_score_the_token_after_it():
    (batch,) = make_micro_batches([row([5, 6], [7, 8])], [0], 100, CPU)
    assert batch.token_ids.tolist() == [[5, 6, 7]]
    assert batch.positions.tolist() == [1, 2]
    assert batch.labels.tolist() == [7, 8]
    assert batch.token_index.tolist() == [0, 1]


def test_the_first_token_is_never_trained_even_if_the_mask_has_it():
    rows = [row([], [7, 8, 9]), row([], [4])]
    (batch,) = make_micro_batches(rows, [0, 1], 100, CPU)
    assert batch.labels.tolist() == [8, 9]
    assert batch.token_index.tolist() == [0, 1]


def test_a_row_whose_last_token_is_not_trained_keeps_its_other_tokens():
    (batch,) = make_micro_batches([row([1, 2], [3, 4, 5], mask=[False, False, True, True, False])], [0], 100, CPU)
    assert batch.labels.tolist() == [3, 4]
    assert batch.token_index.tolist() == [0, 1]


def test_a_token_has_the_temperature_of_its_call():
    calls = (SequenceCall(start=1, end=3, reward=0.0, temperature=0.5), SequenceCall(start=4, end=5, reward=0.0))
    rows = [
        msgspec.structs.replace(row([1], [2, 3, 4, 5], mask=[False, True, True, False, True]), calls=calls),
        row([6], [7]),
    ]
    plain, (mixed,) = make_micro_batches(rows, [1], 100, CPU)[0], make_micro_batches(rows, [0, 1], 100, CPU)
    assert plain.temperatures is None
    assert (mixed.labels.tolist(), mixed.temperatures.nan_to_num(nan=-1).tolist()) == ([2, 3, 5, 7], [0.5, 0.5, -1, -1])


def test_holes_in_a_mask_are_skipped():
    (batch,) = make_micro_batches([row([1], [2, 3, 4, 5], mask=[False, True, False, False, True])], [0], 100, CPU)
    assert batch.positions.tolist() == [0, 3]
    assert batch.labels.tolist() == [2, 5]


def test_rows_without_trained_tokens_are_left_out():
    assert make_micro_batches([row([1, 2], [])], [0], 100, CPU) == []
    (batch,) = make_micro_batches([row([1, 2], []), row([1], [2])], [0, 1], 100, CPU)
    assert (batch.token_ids.tolist(), batch.token_index.tolist()) == ([[1]], [0])


@pytest.mark.parametrize("budget", [1, 7, 16, 40, 10_000])
def test_under_any_budget_every_trained_token_is_scored_once_by_its_own_context(budget):
    rng = np.random.default_rng(1)
    rows = [row(rng.integers(1, 99, rng.integers(1, 9)), rng.integers(1, 99, rng.integers(0, 12))) for _ in range(23)]
    wanted = sorted(
        (index, tuple(r.token_ids[:at]), int(r.token_ids[at]), float(r.logprobs[at]))
        for index, r in enumerate(rows)
        for at in np.flatnonzero(r.loss_mask)
    )
    logprobs = np.concatenate([each.logprobs[1:][each.loss_mask[1:]] for each in rows])
    found = []
    for batch in make_micro_batches(rows, range(23), budget, CPU):
        assert batch.token_ids.numel() <= budget or len(batch.token_ids) == 1
        width = batch.token_ids.shape[1]
        for place, label, index, logp in zip(
            batch.positions.tolist(),
            batch.labels.tolist(),
            rows_in(batch, rows),
            logprobs[batch.token_index.numpy()].tolist(),
            strict=True,
        ):
            context = batch.token_ids[place // width, : place % width + 1]
            found.append((index, tuple(context.tolist()), label, logp))
    assert sorted(found) == wanted


def test_rows_are_sorted_by_length_so_that_little_is_padding():
    rows = [row([1], list(range(2, 2 + length))) for length in (3, 40, 4, 39, 3, 40)]
    batches = make_micro_batches(rows, range(6), 130, CPU)
    assert [sorted(set(rows_in(batch, rows))) for batch in batches] == [[1, 3, 5], [0, 2, 4]]


def test_chosen_tokens_need_not_be_the_trained_ones():
    old, new = row([1], [2, 3], version=4), row([1], [5, 6], version=5)
    (batch,) = make_micro_batches([old, new], [0, 1], 100, CPU, lambda r: r.versions == 5)
    assert batch.labels.tolist() == [5, 6]


def test_a_token_knows_its_place_among_all_tokens_of_interest():
    rows = [row([1], [2, 3]), row([1, 2], [4]), row([5], [6, 7, 8])]
    everything = [2, 3, 4, 6, 7, 8]
    for sharing in ("off", "on"):
        for batch in make_micro_batches(rows, [0, 2], 100, CPU, sharing=sharing):
            assert [everything[place] for place in batch.token_index.tolist()] == batch.labels.tolist()


def families(groups, members):
    """Rows of groups with one prompt each."""
    rng = np.random.default_rng(2)
    prompts = [rng.integers(1, 99, 20) for _ in range(groups)]
    return [
        row(prompts[index % groups], rng.integers(1, 99, rng.integers(1, 12)), group=index % groups)
        for index in range(groups * members)
    ]


@pytest.mark.parametrize("sharing", ["off", "on"])
@pytest.mark.parametrize("budget", [1, 60, 150, 10_000])
def test_rows_that_belong_together_lie_together_under_any_budget(budget, sharing):
    rows = families(5, 4)
    batches = make_micro_batches(rows, range(20), budget, CPU, whole_groups=True, sharing=sharing)
    held = [set(rows_in(batch, rows)) for batch in batches]
    assert sorted(index for part in held for index in part) == list(range(20))
    for part, batch in zip(held, batches, strict=True):
        assert part == {index for index in range(20) if rows[index].group in {rows[other].group for other in part}}
        assert batch.computed_tokens <= budget or len(part) == 4


@pytest.mark.parametrize("budget", [1, 30, 60, 150, 10_000])
def test_shared_tokens_are_computed_once_within_any_budget(budget):
    rows = families(5, 4)
    batches = make_micro_batches(rows, range(20), budget, CPU, sharing="on")
    found = []
    for batch in batches:
        assert batch.computed_tokens <= budget or len(set(rows_in(batch, rows))) == 1
        found += list(zip(rows_in(batch, rows), batch.labels.tolist(), strict=True))
    wanted = [(index, token) for index, each in enumerate(rows) for token in each.token_ids[each.loss_mask].tolist()]
    assert sorted(found) == sorted(wanted)
    assert sum(batch.sequence_tokens for batch in batches) == sum(len(each.token_ids) - 1 for each in rows)
    if budget == 10_000:
        assert sum(batch.computed_tokens for batch in batches) == 5 * 20 + sum(
            int(each.loss_mask.sum()) - 1 for each in rows
        )


def test_without_sharing_padding_is_all_that_is_computed_beside_the_rows():
    (batch,) = make_micro_batches([row([1, 2], [3, 4]), row([1], [2])], [0, 1], 100, CPU)
    assert (batch.sequence_tokens, batch.computed_tokens, batch.branches) == (4, 6, None)


def with_one_system_prompt(groups, members, system=64):
    """Rows of groups whose prompts begin alike."""
    draw = np.random.default_rng(3)
    common = draw.integers(1, 99, system)
    prompts = [np.concatenate([common, draw.integers(1, 99, 10)]) for _ in range(groups)]
    return [
        row(prompts[at // members], draw.integers(1, 99, draw.integers(5, 12)), group=at // members)
        for at in range(groups * members)
    ]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("budget", [1, 100, 200, 300, 10_000])
def test_groups_with_one_system_prompt_share_it_within_any_budget(budget, together):
    rows = with_one_system_prompt(6, 4)
    batches = make_micro_batches(rows, range(24), budget, CPU, whole_groups=together, sharing="on")
    held = [{rows[index].group for index in rows_in(batch, rows)} for batch in batches]
    found = sorted(pair for batch in batches for pair in zip(rows_in(batch, rows), batch.labels.tolist(), strict=True))
    assert found == sorted(
        (index, token) for index, each in enumerate(rows) for token in each.token_ids[each.loss_mask].tolist()
    )
    own = sum(int(each.loss_mask.sum()) - 1 for each in rows) + 6 * 10
    for batch, groups in zip(batches, held, strict=True):
        assert batch.computed_tokens <= budget or len(groups) == 1
    if budget >= 200:
        # A row's first token or two may be those of another row of its group by chance.
        assert (
            own + 64 * len(batches) - 2 * len(rows)
            <= sum(batch.computed_tokens for batch in batches)
            <= own + 64 * len(batches)
        )
    if budget == 10_000:
        assert len(batches) == 1


def test_a_few_tokens_in_common_do_not_join_groups():
    rows = with_one_system_prompt(3, 2, system=40)
    (batch,) = make_micro_batches(rows, range(6), 10_000, CPU, sharing="on")
    assert batch.computed_tokens == 3 * 50 + sum(int(each.loss_mask.sum()) - 1 for each in rows)


@given(WEIGHTS, st.integers(1, 8000))
def test_first_fit_has_every_item_once_and_keeps_to_the_budget(weights, budget):
    parts = first_fit_decreasing(weights, budget)
    assert sorted(index for part in parts for index in part) == list(range(len(weights)))
    for part in parts:
        assert part
        assert sum(weights[index] for index in part) <= budget or len([index for index in part if weights[index]]) == 1


@given(WEIGHTS, st.integers(1, 8000))
def test_first_fit_never_leaves_two_parts_that_would_fit_into_one(weights, budget):
    totals = sorted(sum(weights[index] for index in part) for part in first_fit_decreasing(weights, budget))
    assert len(totals) < 2 or totals[0] + totals[1] > budget
