"""Drawing tokens, and the batches in which prompts are computed."""

from __future__ import annotations

import numpy as np
import torch

from areal_actors.engines.sampling import Sampler, filtered, uniforms
from areal_actors.engines.slots import padded_batches
from areal_actors.values import SamplingParams


def test_batches_of_prompts_hold_each_once_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 70, 200).tolist()
    batches = padded_batches(lengths, 64)
    assert sorted(index for batch in batches for index in batch) == list(range(200))
    assert all(len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 64 for batch in batches)


def test_top_k_and_top_p_keep_the_fewest_most_likely_tokens() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    for top_p, top_k, kept in (
        (1.0, 2, [1, 3]),
        (0.5, 2**31, [1, 3]),
        (0.4, 2**31, [1]),
        (0.0, 2**31, [1]),
        (0.75, 3, [1, 3]),
        (1.0, 2**31, [0, 1, 2, 3]),
    ):
        result = filtered(probabilities, torch.tensor([[top_p]]), torch.tensor([[float(top_k)]]))
        assert result.nonzero()[:, 1].tolist() == kept
        assert torch.equal(result[result > 0], probabilities[result > 0])


def test_draws_follow_the_distribution_and_report_it_unfiltered() -> None:
    rows = 20_000
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]]).expand(rows, -1)
    sampling = SamplingParams(temperature=2.0, top_k=2)
    tokens, logprobs = Sampler([sampling] * rows, torch.device("cpu")).sample(logits, uniforms(0, rows))
    expected = torch.log_softmax(logits[0] / 2.0, -1).numpy()
    assert np.allclose(logprobs, expected[tokens], atol=1e-6)
    kept = np.exp(expected[[1, 2]]) / np.exp(expected[[1, 2]]).sum()
    assert np.allclose(np.bincount(tokens, minlength=4) / rows, [0, *kept, 0], atol=0.015)


def test_the_extreme_uniform_numbers_never_draw_an_impossible_token() -> None:
    logits = torch.full((1, 7), -torch.inf)
    logits[0, 2:5] = 0.0
    sampler = Sampler([SamplingParams()], torch.device("cpu"))
    assert sampler.sample(logits, np.zeros(1, dtype=np.float32))[0][0] == 2
    assert sampler.sample(logits, uniforms(0, 1) * 0 + np.float32(1 - 2.0**-22))[0][0] == 4
