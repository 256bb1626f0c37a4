"""The parity metric: silent when trainer and sampler agree, an alarm when they do not."""

import math
from functools import partial

import msgspec
import numpy as np
import pytest
from support.tiny_trainer import logps, make_trainer, sequences_of, write_model

from areal_actors.training.logprob_check import mismatch_metrics
from areal_actors.training.step_data import step_tokens


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model_folder):
    return partial(make_trainer, model_folder)


def compared(trainer, rows, version):
    tokens = step_tokens(rows, version)
    return mismatch_metrics(rows, tokens.behaviour, trainer._logprob_check.rescore(rows, version))


def test_parity_sees_that_trainer_and_sampler_agree_and_that_they_do_not(make):
    trainer = make()
    rows = sequences_of(trainer)
    tokens = sum(int(row.loss_mask.sum()) for row in rows)
    metrics = make().step(rows)
    assert metrics["train_infer_logprob_diff_max"] < 1e-5
    assert metrics["parity_tokens"] == tokens
    logprobs = rows[3].logprobs.copy()
    logprobs[-1] -= 0.25
    rows[3] = msgspec.structs.replace(rows[3], logprobs=logprobs)
    assert make().step(rows)["train_infer_logprob_diff_max"] == pytest.approx(0.25, abs=1e-4)


def test_parity_scores_each_token_with_the_weights_that_sampled_it(make):
    trainer = make(lr=2e-2)
    first = sequences_of(trainer)
    trainer.step(first)
    # An interrupted completion: its later tokens, sampled by the new weights, saw all the earlier ones.
    mixed = []
    for row in first:
        half = len(row.token_ids) - int(row.loss_mask.sum()) // 2
        late = np.arange(len(row.token_ids)) >= half
        renewed = np.concatenate([[0.0], logps(trainer._model, row.token_ids)])
        mixed.append(
            msgspec.structs.replace(
                row,
                logprobs=np.where(late, renewed, row.logprobs).astype(np.float32),
                versions=np.where(late, 1, row.versions).astype(np.int32),
            )
        )
    all_old = [
        msgspec.structs.replace(row, versions=np.where(row.versions >= 0, 0, -1).astype(np.int32)) for row in mixed
    ]
    assert compared(trainer, mixed, 1)["train_infer_logprob_diff_max"] < 1e-5
    assert compared(trainer, all_old, 1)["train_infer_logprob_diff_max"] > 1e-2


def test_parity_keeps_as_many_weights_as_staleness_allows_and_checks_a_set_number_of_rows(make):
    trainer = make(max_staleness=1, logprob_check_sequences=2)
    rows = sequences_of(trainer)
    for _ in range(3):
        trainer.step(rows)
    assert sorted(trainer._logprob_check.copies) == [2, 3]
    assert trainer.step(rows)["parity_tokens"] == 0
    fresh = make(logprob_check_sequences=2).step(rows)
    assert 0 < fresh["parity_tokens"] < fresh["trained_tokens"]
    assert make(logprob_check_sequences=0).step(rows)["parity_tokens"] == 0


def test_a_log_probability_that_is_not_a_number_does_not_pass_for_parity(make):
    trainer = make()
    rows = sequences_of(trainer)
    rows[0] = msgspec.structs.replace(rows[0], logprobs=np.full_like(rows[0].logprobs, math.nan))
    metrics = compared(trainer, rows, 0)
    assert metrics["train_infer_logprob_diff_max"] == math.inf
    assert metrics["mismatch_worst_sequence"] == 0
    assert metrics["mismatch_vetoed_frac"] > 0
    assert math.isfinite(metrics["mismatch_kl_k3"])
