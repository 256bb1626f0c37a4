"""Episodes of several rows and calls in the trainer: the columns of a step, one loss under every cut, critics after the
last token."""

from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_trainer import make_trainer, write_model
from support.tiny_trainer import sequences_of as sampled_rows
from transformers import AutoModelForSequenceClassification

from areal_actors.core.errors import EngineError
from areal_actors.core.values import Interaction, TokenColumns, Trajectory, pack_ids
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit
from areal_actors.training.algorithms import Dpo, DrGrpo, Grpo, Ppo, ReinforcePlusPlus, Rloo
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.shaping import Shaping
from areal_actors.training.step_data import cut_sequences, step_tokens

MASK = Shaping(truncated="mask")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model_folder):
    return partial(make_trainer, model_folder)


def episode(name, turns, reward, *, seed, broken=None, cut=False):
    """A conversation of calls whose tokens extend each other; the prefix of call `broken` is not known to be one."""
    rng = np.random.default_rng(seed)
    calls, seen = [], []
    for number in range(turns):
        prompt, answer = rng.integers(3, 500, 4).tolist(), rng.integers(3, 500, rng.integers(1, 5)).tolist()
        alone = number in (0, broken)
        calls.append(
            Interaction(
                id=f"{name}-{number}",
                parent=calls[-1].id if calls else "",
                prefix="" if alone else calls[-1].id,
                prompt_suffix=pack_ids(seen + prompt if alone else prompt),
                completion=TokenColumns.of(
                    answer, rng.uniform(-7.0, -5.0, len(answer)).tolist(), [number % 2] * len(answer)
                ),
                finish_reason="length" if cut and number == turns - 1 else "stop",
                reward=0.5 if number == 0 and turns == 3 else None,
            )
        )
        seen += prompt + answer
    group, _, _ = name.partition(".")
    return Trajectory(episode=name, group=group, attempt=1, task="t", reward=reward, interactions=tuple(calls))


def batch(style="concat", *, broken=None, oldest=0, baseline_over="episodes", cut=()):
    """Two groups of three episodes with one to four calls."""
    rows = []
    for number, (turns, reward) in enumerate([(1, 1.0), (3, 0.0), (4, 0.25), (2, 1.0), (1, 0.0), (3, 1.0)]):
        group = number // 3
        one = episode(f"{group}.{number}", turns, reward, seed=number, broken=broken, cut=number in cut)
        rows += sequences_of(one, group, oldest, Credit(style=style, baseline_over=baseline_over))
    return rows


CUTS = {"individual": {"style": "individual"}, "broken prefixes": {"broken": 1}, "late broken prefixes": {"broken": 2}}


@pytest.mark.parametrize(
    "algorithm",
    [
        Grpo(loss_aggregation="token_mean", normalize_advantages=True),
        Grpo(loss_aggregation="seq_mean"),
        DrGrpo(constant_length=9),
        Rloo(),
        ReinforcePlusPlus(),
        Ppo(gae_lambda=1.0),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
@pytest.mark.parametrize("oldest", [0, 1])
def test_the_loss_and_its_gradient_do_not_depend_on_how_episodes_are_cut_into_rows(make, algorithm, oldest):
    seen = []
    for cut in ({}, *CUTS.values()):
        trainer = make(algorithm)
        metrics = trainer.step(batch(oldest=oldest, **cut))
        seen.append((metrics, [parameter.grad.clone() for parameter in trainer._model.parameters()]))
    first, gradients = seen[0]
    assert first["grad_norm"] > 0.01
    for metrics, others in seen[1:]:
        for name in (
            "loss",
            "trained_tokens",
            "reward_mean",
            "reward_std",
            "advantage_mean",
            "advantage_std",
            "groups_without_signal",
        ):
            assert metrics[name] == pytest.approx(first[name], abs=1e-6), name
        for ours, theirs in zip(others, gradients, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


def test_the_columns_of_a_step_name_the_calls_and_episodes_of_rows():
    rows = batch("individual")
    tokens = step_tokens(rows, 1)
    calls = [1, 3, 4, 2, 1, 3]
    assert tokens.call_sequences.tolist() == list(range(sum(calls)))
    assert tokens.samples.tolist() == [number for number, count in enumerate(calls) for _ in range(count)]
    assert tokens.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert tokens.rewards.tolist() == [1.0, 0.5, 0.0, 0.0, *[0.25] * 4, 1.0, 1.0, 0.0, 0.5, 1.0, 1.0]
    assert tokens.sampled.tolist() == [row.calls[0].end - row.calls[0].start for row in rows]
    assert tokens.calls.tolist() == tokens.sequences.tolist(), "a call per row"
    whole = step_tokens(batch(), 1)
    assert whole.call_sequences.tolist() == tokens.samples.tolist()
    assert whole.calls.tolist() == tokens.calls.tolist()
    assert (whole.sampled.tolist(), whole.rewards.tolist()) == (tokens.sampled.tolist(), tokens.rewards.tolist())


def test_calls_can_be_samples_of_their_own():
    tokens = step_tokens(batch(baseline_over="calls"), 1)
    assert tokens.samples.tolist() == list(range(14))
    assert tokens.groups.tolist() == [0] * 8 + [1] * 6


def test_a_call_whose_tokens_are_all_too_old_still_counts_in_the_statistics():
    tokens = step_tokens(batch(oldest=1), 1)
    assert len(tokens.rewards) == 14
    assert len(set(tokens.calls.tolist())) < 14


def test_a_trained_token_of_no_call_is_refused_by_its_place():
    rows = batch()
    rows[1] = msgspec.structs.replace(rows[1], calls=rows[1].calls[1:])
    with pytest.raises(
        EngineError, match=r"sequence 1 \(group 0\): its token at position 4 is trained but belongs to none"
    ):
        step_tokens(rows, 1)


# ---------------------------------------------------------------- answers cut by length


@pytest.mark.parametrize("cut", [{}, *CUTS.values()])
def test_masked_answers_train_nothing_and_their_rewards_count(make, cut):
    trainer, unmasked = make(Grpo(shaping=MASK)), make()
    rows = batch(cut=(1, 3), **cut)
    kept = sum(int(row.loss_mask.sum()) for row in rows if row.episode not in {"0.1", "1.3"})
    metrics = trainer.step(rows)
    assert metrics["trained_tokens"] == kept
    assert metrics["reward_mean"] == unmasked.step(rows)["reward_mean"]


def test_a_batch_of_which_every_answer_is_masked_is_refused_with_what_to_loosen(make):
    with pytest.raises(EngineError, match=r"masks every token of this batch.*`shaping.truncated`"):
        make(Grpo(shaping=MASK)).step(batch(cut=range(6)))


def test_only_the_row_in_which_a_cut_episode_ends_is_scored_after_its_last_token():
    rows = batch("individual", cut=(2, 4))
    indices, ended = cut_sequences(rows, step_tokens(rows, 1))
    assert indices == [7, 10]
    for index, row in zip(indices, ended, strict=True):
        assert row.token_ids[:-1].tolist() == rows[index].token_ids.tolist()
        assert np.flatnonzero(row.loss_mask).tolist() == [len(rows[index].token_ids)]
    assert cut_sequences(batch(), step_tokens(batch(), 1)) == ([], [])


def test_bootstrapping_uses_the_critic_s_value_after_the_last_token(make, tmp_path):
    trainer = make(Ppo(bootstrap_truncated=True, gae_lambda=1.0, normalize_advantages=False))
    rows = batch(cut=(1, 2, 5))
    trainer.step(rows)
    trainer.save(str(tmp_path))
    prepared = trainer.prepare(rows)
    critic = AutoModelForSequenceClassification.from_pretrained(tmp_path / "critic", num_labels=1).eval()
    with torch.no_grad():
        after = [float(critic(input_ids=torch.as_tensor(row.token_ids)[None]).logits) for row in rows]
    expected = [value if number in {1, 2, 5} else 0.0 for number, value in enumerate(after)]
    assert prepared.tokens.last_values.tolist() == pytest.approx(expected, abs=1e-5)
    assert min(abs(value) for value in after) > 1e-4
    returns = prepared.tokens.rewards[prepared.tokens.calls] + torch.tensor(expected)[prepared.tokens.sequences]
    assert prepared.advantages.returns.tolist() == pytest.approx(returns.tolist(), abs=1e-5)


def test_nothing_is_scored_after_the_end_where_no_answer_was_cut(make):
    prepared = make(Ppo(bootstrap_truncated=True)).prepare(batch())
    assert prepared.tokens.last_values.tolist() == [0.0] * 6


# ---------------------------------------------------------------- one update, pairs, metrics


def test_with_one_update_a_step_the_loglinear_proximal_policy_is_the_exact_one(make):
    approximate, exact = (make(Grpo(correction=Correction(proximal=kind))) for kind in ("loglinear", "recomputed"))
    rows = sampled_rows(exact, off=0.4)
    assert approximate.step(rows) == exact.step(rows)


class Recording(Grpo, tag="recording"):
    """GRPO that writes down whether each loss has the exact proximal log-probabilities."""

    def loss(self, batch, logp):
        RECORDED.append(batch.proximal_exact)
        return super().loss(batch, logp)


RECORDED = []


@pytest.mark.parametrize(("proximal", "expected"), [("loglinear", [True, False]), ("recomputed", [True, True])])
def test_the_first_update_of_a_step_has_the_exact_proximal_policy_for_nothing(make, proximal, expected):
    trainer = make(Recording(minibatches=2, correction=Correction(proximal=proximal)))
    RECORDED.clear()
    trainer.step(sampled_rows(trainer))
    assert expected == RECORDED


def test_a_pair_with_a_masked_side_is_refused_before_anything_is_trained(make):
    trainer = make(Dpo())
    rows = [
        msgspec.structs.replace(row, reward=float(number % 2))
        for number, row in enumerate(sampled_rows(make(), members=2))
    ]
    rows[4] = msgspec.structs.replace(rows[4], loss_mask=np.zeros_like(rows[4].loss_mask))
    with pytest.raises(EngineError, match="preference pair 2 of the batch has 0 rejected answers"):
        trainer.step(rows)
    assert trainer.weight_version == 0


def test_rewards_are_reported_over_episodes(make):
    metrics = make().prepare(batch("individual")).metrics
    rewards = [1.0, 0.0, 0.25, 1.0, 0.0, 1.0]
    assert metrics["reward_mean"] == pytest.approx(np.mean(rewards))
    assert metrics["reward_std"] == pytest.approx(np.std(rewards))
    assert (metrics["groups"], metrics["sequences"]) == (2.0, 14.0)
