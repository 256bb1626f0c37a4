"""Corrections for off-policy tokens, against their formulas in python's own doubles: weights, the veto, the split, the
metrics."""

import math

import msgspec
import numpy as np
import pytest
import torch
from support.algorithm_cases import FROM_REWARDS, WEIGHT_VERSION, batch_of, by_row, step_of, stories
from support.tiny_trainer import make_trainer, sequences_of, write_model

from areal_actors.training.algorithms import Cispo, Distillation, Grpo, Gspo, M2po, Sapo
from areal_actors.training.algorithms.correction import Correction, Mismatch
from areal_actors.training.algorithms.off_policy import weight_metrics
from areal_actors.training.step_data import step_tokens

POISON = -200.0
"""Error of the log-probabilities of a broken engine, in nats."""


def made(kind, **settings):
    return kind(teacher="big", reward_weight=0.5, **settings) if kind is Distillation else kind(**settings)


def with_rescored(batch, seed=0, *, unknown=()):
    """The batch with tokens rescored a little off the recorded values; those of the current version are the proximal
    ones."""
    noise = torch.rand(len(batch.sequences), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5
    rescored = (batch.behaviour + noise).where(batch.versions != WEIGHT_VERSION, batch.proximal)
    rescored[list(unknown)] = math.nan
    return msgspec.structs.replace(batch, rescored=rescored)


def poisoned(batch, token, value=POISON):
    behaviour = batch.behaviour.clone()
    behaviour[token] = value
    return msgspec.structs.replace(batch, behaviour=behaviour)


def gradient(algorithm, batch, logp):
    logp = logp.clone().requires_grad_()
    algorithm.loss(batch, logp).losses.sum().backward()
    return logp.grad


# ---------------------------------------------------------------- weights by hand


def by_hand(
    log_weights,
    *,
    level="token",
    aggregation="geometric",
    weight="truncate",
    lowest=0.0,
    highest=math.inf,
    advantages=(),
):
    """Weights of one row."""
    if level == "sequence" and log_weights:
        total = sum(log_weights)
        log_weights = [total if aggregation == "product" else total / len(log_weights)] * len(log_weights)
    found = []
    for value, advantage in zip((math.exp(value) for value in log_weights), advantages, strict=True):
        if weight == "truncate":
            found.append(min(max(value, lowest), highest))
        elif weight == "mask":
            found.append(value if lowest <= value <= highest else 0.0)
        else:
            away = (value > highest and advantage > 0) or (value < lowest and advantage < 0)
            found.append(0.0 if away else min(value, highest))
    return found


@pytest.mark.parametrize("weight", ["truncate", "mask", "clip"])
@pytest.mark.parametrize(
    ("level", "aggregation"), [("token", "geometric"), ("sequence", "geometric"), ("sequence", "product")]
)
def test_total_weights_are_those_of_the_formula(weight, level, aggregation):
    rows = stories(1)
    batch, logp = batch_of(rows)
    bounds = {"lowest": 0.7, "highest": 1.4}
    result = Correction(importance_sampling=weight, level=level, aggregation=aggregation, **bounds).correct(batch, logp)
    for row, found in zip(rows, by_row(result.weight, rows), strict=True):
        logs = [proximal - behaviour for proximal, behaviour in zip(row.proximal, row.behaviour, strict=True)]
        expected = by_hand(
            logs, level=level, aggregation=aggregation, weight=weight, advantages=row.advantages, **bounds
        )
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_mismatch_and_staleness_each_have_their_own_weight(level):
    rows = stories(2)
    batch, logp = batch_of(rows)
    batch = with_rescored(batch)
    correction = Correction(
        highest=1.3, lowest=0.8, mismatch=Mismatch(importance_sampling="mask", level=level, highest=1.2, lowest=0.9)
    )
    found = by_row(correction.correct(batch, logp).weight, rows)
    for row, rescored, weights in zip(rows, by_row(batch.rescored, rows), found, strict=True):
        stale = [proximal - own for proximal, own in zip(row.proximal, rescored, strict=True)]
        engine = [own - recorded for own, recorded in zip(rescored, row.behaviour, strict=True)]
        staleness = by_hand(stale, lowest=0.8, highest=1.3, advantages=row.advantages)
        mismatch = by_hand(engine, level=level, weight="mask", lowest=0.9, highest=1.2, advantages=row.advantages)
        assert weights == pytest.approx(
            [one * other for one, other in zip(staleness, mismatch, strict=True)], rel=1e-12
        )


def test_without_bounds_the_two_weights_are_the_total_weight():
    rows = stories(3)
    batch, logp = batch_of(rows)
    apart = Correction(highest=0, mismatch=Mismatch(importance_sampling="truncate", highest=0, lowest=0)).correct(
        with_rescored(batch), logp
    )
    assert torch.allclose(apart.weight, Correction(highest=0).correct(batch, logp).weight, rtol=1e-12)


def test_a_token_that_could_not_be_rescored_has_its_total_weight_bounded_as_without_the_split():
    rows = stories(4)
    batch, logp = batch_of(rows)
    split = Correction(highest=1.2, mismatch=Mismatch(importance_sampling="mask", lowest=0.9, highest=1.1))
    everything = range(len(batch.sequences))
    joint = Correction(highest=1.2).correct(batch, logp)
    assert torch.equal(split.correct(with_rescored(batch, unknown=everything), logp).weight, joint.weight)


@pytest.mark.parametrize("seed", range(3))
def test_ordinary_weights_are_to_the_last_bit_what_they_are_without_a_veto(seed):
    batch, logp = batch_of(stories(seed))
    for settings in ({}, {"level": "sequence"}, {"importance_sampling": "mask", "highest": 1.5}):
        on, off = Correction(**settings).correct(batch, logp), Correction(**settings, veto="off").correct(batch, logp)
        assert torch.equal(on.weight, off.weight)
        assert not on.vetoed.any()
        assert off.vetoed is None


# ---------------------------------------------------------------- the poisoned token


@pytest.mark.parametrize("value", [POISON, 0.0, -math.inf, math.nan], ids=["-200", "0", "-inf", "nan"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["geometric", "product"])
def test_a_catastrophic_token_has_no_gradient_and_others_have_the_weights_they_have_without_it(
    level, aggregation, value
):
    rows = stories(0)
    batch, logp = batch_of(rows)
    poison = 5  # in the middle of the row with five tokens
    if value == 0.0:  # recorded as certain, and as good as impossible
        batch.proximal[poison] = logp[poison] = POISON
    aggregation = aggregation if level == "sequence" else "geometric"
    grpo = Grpo(correction=Correction(level=level, aggregation=aggregation, highest=0))
    found = gradient(grpo, poisoned(batch, poison, value), logp)
    others = torch.arange(len(logp)) != poison

    def alone(column):
        return column[others] if isinstance(column, torch.Tensor) else column

    without = msgspec.structs.replace(batch, **{name: alone(getattr(batch, name)) for name in batch.__struct_fields__})
    assert found[poison] == 0.0
    assert torch.allclose(found[others], gradient(grpo, without, logp[others]), rtol=1e-12)


@pytest.mark.parametrize("tag", sorted(FROM_REWARDS))
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("veto", ["token", "sequence"])
@pytest.mark.parametrize("value", [POISON, -18.0])
def test_no_algorithm_is_poisoned_by_one_token(tag, advantage, veto, value):
    """Its gradient is not above that of a sound token, and that of the other rows is what it is without the poison."""
    rows = stories(0)
    batch, logp = batch_of(rows)
    batch = msgspec.structs.replace(batch, advantages=torch.full_like(batch.advantages, advantage))
    algorithm = made(FROM_REWARDS[tag])
    algorithm = msgspec.structs.replace(algorithm, correction=msgspec.structs.replace(algorithm.correction, veto=veto))
    sound, hurt = gradient(algorithm, batch, logp), gradient(algorithm, poisoned(batch, 5, value), logp)
    own_row = batch.sequences == batch.sequences[5]
    assert hurt[5] == 0.0
    assert torch.equal(hurt[~own_row], sound[~own_row])
    if veto == "sequence":
        assert not hurt[own_row].any()
    else:
        assert hurt[own_row].abs().sum() > 0 or not sound[own_row].any()
    assert algorithm.loss(poisoned(batch, 5, value), logp).measures["vetoed_frac"].sum() == (
        own_row.sum() if veto == "sequence" else 1
    )


@pytest.mark.parametrize("algorithm", [Grpo(correction=Correction(decoupled=False)), Grpo(), Cispo(), M2po(), Sapo()])
def test_without_the_veto_a_wrong_token_has_the_largest_gradient_of_all_except_under_a_gate_that_closes(algorithm):
    """Beyond 20 nats ratios are computed no further, so -200 has no gradient where the ratio itself has it; -18 has."""
    batch, _ = batch_of(stories(0))
    logp = batch.proximal  # the only update of a step
    batch = msgspec.structs.replace(batch, advantages=torch.full_like(batch.advantages, -1.0))
    off = msgspec.structs.replace(algorithm, correction=msgspec.structs.replace(algorithm.correction, veto="off"))
    largest = float(gradient(off, batch, logp).abs().max())
    without = float(gradient(off, poisoned(batch, 5, -18.0), logp)[5].abs())
    assert without < 1e-6 if isinstance(algorithm, Sapo) else without > largest
    assert gradient(algorithm, poisoned(batch, 5, -18.0), logp)[5] == 0.0


def test_m2po_leaves_out_vetoed_tokens_first_however_many_tokens_there_are():
    rows = stories(0)
    batch, _ = batch_of(rows)
    wide = M2po(threshold=1e9)
    hurt = poisoned(batch, 5)
    step = msgspec.structs.replace(step_of(rows), behaviour=hurt.behaviour)
    result = wide.advantages(step)
    assert result.kept.tolist() == [place != 5 for place in range(len(hurt.sequences))]
    assert result.metrics["second_moment"] < 1.0


def test_a_sequence_ratio_is_not_moved_by_a_vetoed_token():
    batch, logp = batch_of(stories(0))
    gspo = Gspo(clip=0.9, clip_higher=0.9)
    sound = gspo.correction.correct(batch, logp).weight
    hurt = gspo.correction.correct(poisoned(batch, 5), logp).weight
    row = batch.sequences == batch.sequences[5]
    assert torch.equal(hurt[~row], sound[~row])
    assert hurt[row].max() < 2.0


# ---------------------------------------------------------------- metrics


def test_metrics_of_weights_are_those_of_the_formulas():
    rows = stories(6)
    batch, _ = batch_of(rows)
    batch = with_rescored(batch)
    metrics = weight_metrics(batch.sequences, batch.behaviour, batch.proximal, batch.rescored)
    logs = [[p - b for p, b in zip(row.proximal, row.behaviour, strict=True)] for row in rows if row.logp]
    weights = [math.exp(value) for row in logs for value in row]
    count = len(weights)
    assert metrics["importance_weight_mean"] == pytest.approx(sum(weights) / count)
    assert metrics["importance_weight_max"] == pytest.approx(max(weights))
    assert metrics["importance_weight_min"] == pytest.approx(min(weights))
    assert metrics["effective_sample_size"] == pytest.approx(
        sum(weights) ** 2 / (count * sum(weight**2 for weight in weights))
    )
    assert metrics["chi2_token"] == pytest.approx(sum(weight**2 for weight in weights) / count - 1)
    assert metrics["chi2_sequence"] == pytest.approx(sum(math.exp(sum(row)) ** 2 for row in logs) / len(logs) - 1)
    stale = (batch.proximal - batch.rescored).tolist()
    assert metrics["staleness_kl_k1"] == pytest.approx(-sum(stale) / count)
    assert metrics["staleness_kl_k2"] == pytest.approx(sum(value**2 for value in stale) / count / 2)
    assert metrics["staleness_kl_k3"] == pytest.approx(sum(math.exp(value) - 1 - value for value in stale) / count)


def test_a_catastrophic_token_shows_in_the_largest_weight_and_in_no_mean():
    batch, _ = batch_of(stories(6))
    sound = weight_metrics(batch.sequences, batch.behaviour, batch.proximal, None)
    hurt = weight_metrics(batch.sequences, poisoned(batch, 5).behaviour, batch.proximal, None)
    assert hurt["importance_weight_max"] == pytest.approx(math.exp(20))
    assert hurt["effective_sample_size"] == pytest.approx(sound["effective_sample_size"], rel=0.2)
    assert hurt["importance_weight_mean"] == pytest.approx(sound["importance_weight_mean"], rel=0.2)
    assert not any(name.startswith("staleness") for name in hurt)
    assert weight_metrics(batch.sequences[:0], batch.behaviour[:0], batch.proximal[:0], None) == {}


# ---------------------------------------------------------------- the split, on rows that a real trainer sampled


@pytest.fixture(scope="module")
def aged(tmp_path_factory):
    """A trainer at version 2, and rows whose tokens versions 0, 1 and 2 sampled; the recorded values are up to 0.3 nats
    off."""
    folder = write_model(tmp_path_factory.mktemp("model"))
    trainer = make_trainer(
        folder,
        Grpo(correction=Correction(mismatch=Mismatch(importance_sampling="mask", lowest=0.9, highest=1.1))),
        lr=5e-3,
    )
    rows, own = [], []
    for version in range(3):
        sampled = sequences_of(trainer, groups=3, seed=version)
        own += [row.logprobs[row.loss_mask] for row in sampled]
        noisy = [
            row.logprobs + np.random.default_rng(version).uniform(-0.3, 0.3, len(row.logprobs)) * row.loss_mask
            for row in sampled
        ]
        rows += [
            msgspec.structs.replace(row, logprobs=logprobs.astype(np.float32), group=row.group + 3 * version)
            for row, logprobs in zip(sampled, noisy, strict=True)
        ]
        if version < 2:
            trainer.step(sampled)
    return trainer, rows, torch.from_numpy(np.concatenate(own))


def test_mismatch_and_staleness_add_up_to_the_log_weight_for_tokens_of_every_age(aged):
    trainer, rows, own = aged
    tokens = step_tokens(rows, trainer.weight_version)
    proximal, rescored = trainer.logp(rows), trainer._logprob_check.rescore(rows, trainer.weight_version)
    assert sorted(set(tokens.versions.tolist())) == [0, 1, 2]
    assert not rescored.isnan().any()
    assert torch.allclose(rescored, own.float(), atol=1e-5), "what each version gave its own tokens"
    total = proximal.double() - tokens.behaviour.double()
    staleness, mismatch = proximal.double() - rescored.double(), rescored.double() - tokens.behaviour.double()
    assert float((staleness + mismatch - total).abs().max()) < 1e-6
    assert float(staleness[tokens.versions == 2].abs().max()) < 1e-5
    assert float(staleness[tokens.versions == 0].abs().max()) > 1e-2
    assert float(mismatch.abs().max()) < 0.3 + 1e-4


def test_a_step_weighs_and_measures_both_parts(aged):
    trainer, rows, own = aged
    behaviour = step_tokens(rows, 2).behaviour.double()
    proximal = trainer.logp(rows).double()
    assert trainer.evaluate(rows)["mismatch_masked_frac"] > 0
    mismatch, staleness = own.double() - behaviour, proximal - own.double()
    prepared = trainer.prepare(rows)
    metrics = trainer.update(prepared)
    outside = ((mismatch.exp() > 1.1) | (mismatch.exp() < 0.9)).double()
    weight = mismatch.exp() * (1 - outside) * staleness.exp().clamp(max=5.0)
    assert metrics["behaviour_weight_mean"] == pytest.approx(float(weight.mean()), rel=1e-4)
    assert metrics["mismatch_masked_frac"] == pytest.approx(float(outside.mean()))
    assert metrics["mismatch_kl_k1"] == pytest.approx(-float(mismatch.mean()), abs=1e-5)
    assert metrics["mismatch_kl_k3"] == pytest.approx(float((mismatch.exp() - 1 - mismatch).mean()), rel=1e-3)
    assert metrics["staleness_kl_k1"] == pytest.approx(-float(staleness.mean()), abs=1e-5)
    assert metrics["staleness_kl_k3"] == pytest.approx(float((staleness.exp() - 1 - staleness).mean()), rel=1e-3)
    assert metrics["vetoed_frac"] == 0.0
    assert metrics["importance_weight_mean"] == pytest.approx(float((proximal - behaviour).exp().mean()), rel=1e-5)
