"""Drawing tokens, and the batches in which prompts are computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from areal_actors.core.values import SamplingParams
from areal_actors.embedded import sampling as sampling_module
from areal_actors.embedded.logits_processor import LogitsProcessor
from areal_actors.embedded.prefill import prefill_batches
from areal_actors.embedded.sampling import SampledTokens, Sampler, filter_probabilities, uniforms

CPU = torch.device("cpu")


def drawn(
    logits: torch.Tensor, sampling: SamplingParams, seed: int = 0, sampled: tuple[int, ...] = ()
) -> SampledTokens:
    """A draw in each row of the same request."""
    processors = [LogitsProcessor.of(sampling, None, logits.shape[1], CPU, sampled) for _ in logits]
    return Sampler([sampling] * len(logits), CPU, processors).sample(logits.clone(), uniforms(seed, len(logits)))


def test_batches_of_prompts_hold_each_once_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 70, 200).tolist()
    batches = prefill_batches(lengths, 64)
    assert sorted(index for batch in batches for index in batch) == list(range(200))
    assert all(len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 64 for batch in batches)


def test_top_k_and_top_p_keep_the_fewest_most_likely_tokens() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    for top_p, top_k, min_p, kept in (
        (1.0, 2, 0.0, [1, 3]),
        (0.5, 2**31, 0.0, [1, 3]),
        (0.4, 2**31, 0.0, [1]),
        (0.0, 2**31, 0.0, [1]),
        (0.75, 3, 0.0, [1, 3]),
        (1.0, 2**31, 0.0, [0, 1, 2, 3]),
        (1.0, 2**31, 0.5, [1, 2, 3]),
        (1.0, 2**31, 0.51, [1, 3]),
        (0.7, 2**31, 0.5, [1, 3]),
        (1.0, 2**31, 1.0, [1]),
    ):
        result = filter_probabilities(
            probabilities, torch.tensor([[top_p]]), torch.tensor([[float(top_k)]]), torch.tensor([[min_p]])
        )
        assert result.nonzero()[:, 1].tolist() == kept
        assert torch.equal(result[result > 0], probabilities[result > 0])


def test_draws_follow_the_distribution_and_report_it_unfiltered() -> None:
    rows = 20_000
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]]).expand(rows, -1)
    sampling = SamplingParams(temperature=2.0, top_k=2)
    tokens, logprobs, *_ = drawn(logits, sampling)
    expected = torch.log_softmax(logits[0] / 2.0, -1).numpy()
    assert np.allclose(logprobs, expected[tokens], atol=1e-6)
    kept = np.exp(expected[[1, 2]]) / np.exp(expected[[1, 2]]).sum()
    assert np.allclose(np.bincount(tokens, minlength=4) / rows, [0, *kept, 0], atol=0.015)


def test_the_extreme_uniform_numbers_never_draw_an_impossible_token() -> None:
    logits = torch.full((1, 7), -torch.inf)
    logits[0, 2:5] = 0.0
    sampler = Sampler([SamplingParams()], CPU)
    assert sampler.sample(logits, np.zeros(1, dtype=np.float32)).token_ids[0] == 2
    assert sampler.sample(logits, uniforms(0, 1) * 0 + np.float32(1 - 2.0**-22)).token_ids[0] == 4


def test_bias_and_penalties_move_the_draws_and_leave_the_log_probabilities_alone() -> None:
    rows = 20_000
    logits = torch.tensor([[0.0, 1.0, 2.0, 0.5]]).expand(rows, -1)
    sampling = SamplingParams(temperature=2.0, logit_bias={0: 3.0}, presence_penalty=1.5, frequency_penalty=0.5)
    draws = drawn(logits, sampling, sampled=(2, 1, 2))
    own = torch.log_softmax(logits[0] / 2.0, -1).numpy()
    moved = torch.softmax(torch.tensor([0.0 + 3.0, 1.0 - 2.0, 2.0 - 2.5, 0.5]) / 2.0, -1).numpy()
    assert np.allclose(np.bincount(draws.token_ids, minlength=4) / rows, moved, atol=0.015)
    assert np.allclose(draws.logprobs, own[draws.token_ids], atol=1e-6)


def test_a_token_is_penalised_once_for_its_presence_and_each_time_for_its_frequency() -> None:
    sampling = SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=1.0)
    sampler = Sampler([sampling], CPU, [LogitsProcessor.of(sampling, None, 3, CPU, ())])
    taken = [int(sampler.sample(torch.tensor([[0.0, 4.9, 2.5]]), uniforms(0, 1)).token_ids[0]) for _ in range(8)]
    # Token 1 stands at 4.9, 1.9 and 0.9 after 0, 1 and 2 times; token 2 at 2.5, -0.5; token 0 at 0.0, -3.0.
    assert taken == [1, 2, 1, 1, 0, 1, 2, 1]


def test_rows_without_a_wish_draw_as_if_they_were_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 50) * 3
    plain, filtering = SamplingParams(temperature=0.7), SamplingParams(top_p=0.8, temperature=1.3)
    wishes = [
        plain,
        SamplingParams(logit_bias={3: 100.0}),
        filtering,
        SamplingParams(top_logprobs=4),
        SamplingParams(temperature=0, presence_penalty=2),
        plain,
    ]
    processors = [LogitsProcessor.of(wish, None, 50, CPU, ()) for wish in wishes]
    together = Sampler(wishes, CPU, processors).sample(logits.clone(), uniforms(1, 6))
    for row in (0, 2, 5):
        alone = Sampler([wishes[row]], CPU).sample(logits[row : row + 1].clone(), uniforms(1, 6)[row : row + 1])
        assert (alone.token_ids[0], alone.logprobs[0]) == (together.token_ids[row], together.logprobs[row])
    assert together.token_ids[1] == 3


def test_the_most_likely_tokens_are_returned_in_order_where_requested() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 30)
    wishes = [
        SamplingParams(top_logprobs=2, temperature=0.5),
        SamplingParams(),
        SamplingParams(top_logprobs=5, logit_bias={7: -100}),
    ]
    processors = [LogitsProcessor.of(wish, None, 30, CPU, ()) for wish in wishes]
    draws = Sampler(wishes, CPU, processors).sample(logits.clone(), uniforms(0, 3))
    assert draws.top is not None
    assert list(draws.top.rows) == [0, 2]
    assert draws.top.logprobs.shape == (2, 5)
    for place, temperature in ((0, 0.5), (1, 1.0)):
        row = draws.top.rows[place]
        expected = torch.log_softmax(logits[row] / temperature, -1)
        best = expected.topk(5)
        assert draws.top.token_ids[place].tolist() == best.indices.tolist()
        assert draws.top.logprobs[place] == pytest.approx(best.values.numpy(), abs=1e-6)
        assert draws.logprobs[row] == expected[int(draws.token_ids[row])]


def test_a_token_that_a_bias_forces_has_a_finite_log_probability_however_unlikely_it_is() -> None:
    logits = torch.tensor([[0.0, 300.0, 0.0]])
    draws = drawn(logits, SamplingParams(logit_bias={2: 1e6}))
    assert (draws.token_ids[0], draws.logprobs[0]) == (2, -300.0)
    assert not draws.failed


def test_a_row_that_can_draw_only_the_impossible_fails_alone() -> None:
    logits = torch.full((2, 4), -torch.inf)
    logits[:, 1] = 0.0
    wishes = [SamplingParams(), SamplingParams(logit_bias={1: -torch.inf})]
    processors = [LogitsProcessor.of(wish, None, 4, CPU, ()) for wish in wishes]
    draws = Sampler(wishes, CPU, processors).sample(logits, uniforms(0, 2))
    assert draws.token_ids[0] == 1
    assert set(draws.failed) == {1}


def test_a_seed_continues_where_it_was() -> None:
    assert np.array_equal(uniforms(7, 20)[12:], uniforms(7, 8, 12))


@pytest.mark.parametrize("temperatures", [(1.0,), (0.0,), (0.0, 1.0, 0.7)])
def test_rows_that_are_processed_in_blocks_draw_as_they_do_together(
    monkeypatch: pytest.MonkeyPatch, temperatures: tuple[float, ...]
) -> None:
    numbers = np.random.default_rng(0)
    logits, uniform = (
        torch.from_numpy(numbers.normal(size=(23, 50)).astype(np.float32)) * 3,
        numbers.random(23, dtype=np.float32),
    )
    sampler = Sampler(
        [SamplingParams(temperature=temperatures[row % len(temperatures)]) for row in range(23)], torch.device("cpu")
    )
    together = sampler.sample(logits.clone(), uniform)
    monkeypatch.setattr(sampling_module, "BLOCK_ENTRIES", 4 * 50 + 1)
    in_blocks = sampler.sample(logits.clone(), uniform)
    assert in_blocks.token_ids.tolist() == together.token_ids.tolist()
    assert in_blocks.logprobs.tolist() == together.logprobs.tolist()
