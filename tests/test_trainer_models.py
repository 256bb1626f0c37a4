"""The models beside the trained one: critic, reference, teacher; and a trained model with a scalar head."""

import math
from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_trainer import logps, make_trainer, same, sequences_of, weights, write_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_actors.core.errors import CheckpointError, EngineError, SetupError
from areal_actors.core.values import TrainingSequence
from areal_actors.training.algorithms import Distillation, Dpo, Grpo, Ppo, RewardModel
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.models import load_model

PPO = Ppo(minibatches=2)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model_folder):
    return partial(make_trainer, model_folder)


def scores(model, row):
    """Scores of a Hugging Face sequence classifier for the row's prefixes, one for each trained token."""
    ends = np.flatnonzero(row.loss_mask[1:]) + 1
    with torch.no_grad():
        return [float(model(input_ids=torch.as_tensor(row.token_ids[:end])[None]).logits) for end in ends]


def pairs_of(pairs=4, seed=0):
    """Pairs of rows of which only the last token is scored; the preferred one has more high token ids."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(2 * pairs):
        preferred = number % 2 == 0
        answer = rng.integers(250, 500, rng.integers(2, 9)) if preferred else rng.integers(3, 250, rng.integers(2, 9))
        ids = np.concatenate([rng.integers(3, 500, 3), answer]).astype(np.int64)
        rows.append(
            TrainingSequence(
                token_ids=ids,
                loss_mask=np.arange(len(ids)) == len(ids) - 1,
                logprobs=np.zeros(len(ids), dtype=np.float32),
                versions=np.full(len(ids), -1, dtype=np.int32),
                group=number // 2,
                reward=float(preferred),
                truncated=False,
            )
        )
    return rows


# ---------------------------------------------------------------- the critic


def test_the_critic_begins_at_nothing_and_learns_what_comes(make):
    trainer = make(PPO, lr=1e-9)
    rows = [msgspec.structs.replace(row, reward=1.0) for row in sequences_of(trainer)]
    assert trainer.values(rows).abs().max() == 0
    seen = [trainer.step(rows) for _ in range(8)]
    assert seen[-1]["critic_loss"] < seen[0]["critic_loss"] / 4
    assert trainer.values(rows).mean() > 0.5
    assert seen[0]["critic_lr"] == PPO.critic.lr
    assert seen[0]["critic_grad_norm"] > 0
    assert 0 <= seen[-1]["critic_clip_frac"] <= 1
    assert seen[0]["trained_tokens"] == sum(row.loss_mask.sum() for row in rows)


def test_values_are_the_saved_critic_s_just_before_each_token(make, tmp_path):
    trainer = make(PPO)
    rows = sequences_of(trainer)
    for _ in range(2):
        trainer.step(rows)
    trainer.save(str(tmp_path))
    critic = AutoModelForSequenceClassification.from_pretrained(tmp_path / "critic", num_labels=1).eval()
    assert trainer.values(rows).tolist() == pytest.approx(
        [score for row in rows for score in scores(critic, row)], abs=1e-5
    )


def test_the_first_loss_of_the_critic_is_that_of_the_returns(make):
    trainer = make(Ppo())
    rows = sequences_of(trainer)
    returns = trainer.prepare(rows).advantages.returns
    bounded = (0.0 - returns).abs()  # every value is 0 at first, and none has moved
    assert trainer.step(rows)["critic_loss"] == pytest.approx(float(bounded.square().mean() / 2), rel=1e-5)


def test_policy_and_critic_continue_from_a_checkpoint_to_the_last_bit(make, tmp_path):
    trainer = make(PPO)
    batches = [sequences_of(trainer, seed=seed, off=0.2) for seed in range(4)]
    for batch in batches[:2]:
        trainer.step(batch)
    trainer.save(str(tmp_path))
    restored = make(PPO, seed=5)
    restored.load(str(tmp_path))
    assert [restored.step(batch) for batch in batches[2:]] == [trainer.step(batch) for batch in batches[2:]]
    assert same(weights(trainer), weights(restored))
    assert same(trainer._critic.model.state_dict(), restored._critic.model.state_dict())
    (tmp_path / "critic" / "trainer_state.pt").unlink()
    with pytest.raises(CheckpointError, match=r"critic has no trainer_state\.pt"):
        make(PPO).load(str(tmp_path))


def test_a_critic_whose_loss_is_not_finite_stops_the_policy_too(make, monkeypatch):
    trainer = make(Ppo())
    before = weights(trainer)
    monkeypatch.setattr(
        Ppo,
        "critic_loss",
        lambda self, batch, values: msgspec.structs.replace(self.loss(batch, values), losses=values * math.nan),
    )
    with pytest.raises(EngineError, match="the loss of the critic in step 0 is nan"):
        trainer.step(sequences_of(trainer))
    assert same(before, weights(trainer))
    monkeypatch.undo()
    assert math.isfinite(trainer.step(sequences_of(trainer))["critic_loss"])


def test_who_has_no_critic_has_no_values_and_who_has_a_scalar_head_no_log_probabilities(make):
    trainer = make()
    with pytest.raises(EngineError, match="Grpo has neither a critic nor a scalar head"):
        trainer.values(sequences_of(trainer))
    with pytest.raises(EngineError, match="RewardModel trains a scalar head"):
        make(RewardModel()).logp(sequences_of(trainer))


# ---------------------------------------------------------------- frozen models


def test_the_reference_is_the_model_of_the_beginning_and_stays_it_after_a_resume(make, model_folder, tmp_path):
    algorithm = Grpo(kl=Kl(coefficient=0.1))
    trainer = make(algorithm, lr=1e-2)
    rows = sequences_of(trainer)
    assert trainer.step(rows)["reference_kl"] == pytest.approx(0, abs=1e-6)
    assert trainer.step(rows)["reference_kl"] > 1e-3
    trainer.save(str(tmp_path))
    resumed = make(algorithm, lr=1e-2)
    resumed.load(str(tmp_path))
    initial = AutoModelForCausalLM.from_pretrained(model_folder)
    expected = [logp for row in rows for logp in logps(initial, row.token_ids)[row.loss_mask[1:]]]
    assert resumed.prepare(rows).tokens.reference.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_teacher_from_a_folder_is_followed(make, tmp_path):
    teacher = make(lr=1e-2)
    rows = sequences_of(teacher)
    for _ in range(5):
        teacher.step(rows)
    teacher.save_model(str(tmp_path))
    student = make(Distillation(teacher=str(tmp_path), reward_weight=0.0), lr=5e-3)
    assert student.prepare(rows).tokens.teacher.tolist() == pytest.approx(teacher.logp(rows).tolist(), abs=1e-5)

    def away():
        return float((student.logp(rows) - teacher.logp(rows)).square().mean())

    before = away()
    for _ in range(10):
        student.step(rows)
    assert away() < before / 2


def test_a_model_named_twice_is_kept_once(make, model_folder):
    trainer = make(Distillation(teacher=model_folder, kl=Kl(coefficient=0.1, reference=model_folder)))
    assert trainer._frozen["teacher"] is trainer._frozen["reference"]


def test_a_frozen_model_that_cannot_be_had_or_has_other_tokens_is_refused(make, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SetupError, match="cannot load a model"):
        make(Distillation(teacher=str(tmp_path / "empty")))
    model = make()._model
    model.resize_token_embeddings(700)
    model.save_pretrained(tmp_path / "other")
    with pytest.raises(SetupError, match=r"the teacher in .* has 700 tokens, the policy"):
        make(Distillation(teacher=str(tmp_path / "other")))


def test_pairs_move_away_from_the_reference_in_the_preferred_direction(make):
    trainer = make(Dpo(), lr=5e-3)
    rows = [
        msgspec.structs.replace(row, reward=float(number % 2 == 0))
        for number, row in enumerate(sequences_of(trainer, members=2))
    ]
    seen = [trainer.step(rows) for _ in range(4)]
    assert seen[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert seen[-1]["margin"] > seen[0]["margin"] + 0.1


# ---------------------------------------------------------------- a scalar head


def test_a_reward_model_learns_and_is_a_sequence_classifier_of_hugging_face(make, tmp_path):
    trainer = make(RewardModel(), lr=3e-3)
    seen = [trainer.step(pairs_of(seed=seed % 2)) for seed in range(8)]
    assert seen[0]["loss"] == pytest.approx(math.log(2))
    assert seen[-1]["accuracy"] > 0.9
    trainer.save_model(str(tmp_path))
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=1).eval()
    rows = pairs_of()
    assert trainer.values(rows).tolist() == pytest.approx([scores(theirs, row)[0] for row in rows], abs=1e-5)
    ours = load_model(str(tmp_path), "value")
    assert same(ours.state_dict(), weights(trainer))


def test_a_reward_model_continues_from_a_checkpoint_to_the_last_bit(make, tmp_path):
    trainer = make(RewardModel())
    rows = pairs_of()
    trainer.step(rows)
    trainer.save(str(tmp_path))
    restored = make(RewardModel())
    restored.load(str(tmp_path))
    assert restored.step(rows) == trainer.step(rows)
    assert same(weights(trainer), weights(restored))
    assert trainer.evaluate(rows)["loss"] == restored.evaluate(rows)["loss"]
