"""The trainer against plain computations of the same step, and against itself after a restart."""

import math
from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_trainer import logps, make_trainer, same, sequences_of, weights, write_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from areal_actors.core.errors import CheckpointError, EngineError, SetupError
from areal_actors.core.values import SequenceCall, TrainingSequence
from areal_actors.training.algorithms import Grpo
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.packing.scoring import TokenScorer
from areal_actors.training.step_data import step_tokens
from areal_actors.weights.transfer import read_weights


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model_folder):
    return partial(make_trainer, model_folder)


# ---------------------------------------------------------------- a step


def test_the_loss_of_a_step_is_the_mean_over_all_its_tokens(make):
    trainer = make()
    rows = sequences_of(trainer, off=2.5)
    rewards = np.array([row.reward for row in rows])
    total, tokens = 0.0, 0
    for row in rows:
        members = rewards[[other.group == row.group for other in rows]]
        advantage = 0.0 if members.std() == 0 else (row.reward - members.mean()) / (members.std(ddof=1) + 1e-6)
        current = logps(trainer._model, row.token_ids)[row.loss_mask[1:]]
        total -= sum(
            min(math.exp(now - then), 5.0) * advantage
            for now, then in zip(current, row.logprobs[row.loss_mask], strict=True)
        )
        tokens += row.loss_mask.sum()
    metrics = trainer.step(rows)
    assert metrics["loss"] == pytest.approx(total / tokens, abs=1e-5)
    assert metrics["trained_tokens"] == tokens
    assert 0 < metrics["weight_truncated_frac"] < 0.5
    assert metrics["behaviour_weight_max"] == 5.0
    assert metrics["reward_mean"] == pytest.approx(rewards.mean())


@pytest.mark.parametrize("loss_aggregation", ["token_mean", "seq_mean", "constant"])
def test_loss_and_gradient_do_not_depend_on_the_micro_batches(make, loss_aggregation):
    seen = []
    for budget in (1, 50, 10_000):
        trainer = make(Grpo(loss_aggregation=loss_aggregation), microbatch_tokens=budget)
        metrics = trainer.step(sequences_of(trainer, off=0.5))
        seen.append((metrics["loss"], [parameter.grad.clone() for parameter in trainer._model.parameters()]))
    for loss, gradients in seen[1:]:
        assert loss == pytest.approx(seen[0][0], abs=1e-6)
        for ours, theirs in zip(gradients, seen[0][1], strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_the_numeric_one(make):
    trainer = make(max_staleness=0, lr=1e-12, microbatch_tokens=60)
    rows = sequences_of(trainer, off=0.3)
    scale = trainer.step(rows)["grad_norm"]
    parameter = trainer._model.model.layers[0].self_attn.q_proj.weight
    direction = parameter.grad.clone() / parameter.grad.norm()
    clipped = min(1.0, 1.0 / scale)

    def loss_at(distance):
        other = make()
        with torch.no_grad():
            other._model.model.layers[0].self_attn.q_proj.weight += distance * direction
        return surrogate(trainer._algorithm, trainer, other, rows)

    numeric = (loss_at(1e-2) - loss_at(-1e-2)) / 2e-2
    assert numeric == pytest.approx(float((parameter.grad / clipped * direction).sum()), rel=0.02)


def surrogate(algorithm, start, moved, rows):
    """The decoupled loss of `moved` with `start` as proximal weights, in plain float64; so near to them that nothing is
    clipped."""
    step = step_tokens(rows, 0)
    advantages = algorithm.advantages(step).tokens
    total, tokens = 0.0, 0
    for index, row in enumerate(rows):
        advantage = float(advantages[step.sequences == index][0])
        chosen = row.loss_mask[1:]
        now, proximal = (logps(trainer._model, row.token_ids)[chosen] for trainer in (moved, start))
        weight = np.minimum(np.exp(proximal - row.logprobs[row.loss_mask]), 5.0)
        total -= float((weight * np.exp(now - proximal) * advantage).sum())
        tokens += chosen.sum()
    return total / tokens


def test_rewarded_tokens_become_likelier_and_punished_ones_less(make):
    trainer = make()
    rows = sequences_of(trainer)[:2]
    rows = [msgspec.structs.replace(row, group=0, reward=reward) for row, reward in zip(rows, (1.0, 0.0), strict=True)]
    before = [logps(trainer._model, row.token_ids)[row.loss_mask[1:]].sum() for row in rows]
    trainer.step(rows)
    after = [logps(trainer._model, row.token_ids)[row.loss_mask[1:]].sum() for row in rows]
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_a_batch_without_signal_leaves_the_weights_alone(make):
    trainer = make()
    before = weights(trainer)
    metrics = trainer.step([msgspec.structs.replace(row, reward=1.0) for row in sequences_of(trainer)])
    assert same(before, weights(trainer))
    assert (metrics["groups_without_signal"], metrics["grad_norm"]) == (4, 0)


def test_a_reward_is_not_lost_when_the_last_token_is_not_trained(make):
    trainer = make()
    rows = []
    for row in sequences_of(trainer):
        mask = row.loss_mask.copy()
        mask[-1] = False
        rows.append(msgspec.structs.replace(row, loss_mask=mask))
    assert trainer.step(rows)["grad_norm"] > 0


def test_what_stands_after_the_trained_tokens_and_untrained_rows_change_nothing(make):
    one, other = make(), make()
    rows = sequences_of(one)
    longer = [
        TrainingSequence(
            token_ids=np.append(row.token_ids, [5, 6]),
            loss_mask=np.append(row.loss_mask, [False, False]),
            logprobs=np.append(row.logprobs, np.zeros(2, np.float32)),
            versions=np.append(row.versions, np.full(2, -1, np.int32)),
            group=row.group,
            reward=row.reward,
            truncated=row.truncated,
        )
        for row in rows
    ]
    one.step(rows)
    other.step(longer)
    assert same(weights(one), weights(other))


def test_the_same_rows_give_the_same_numbers_to_the_last_bit(make):
    one, other = make(), make()
    rows = sequences_of(one, off=0.4)
    assert [one.step(rows) for _ in range(3)] == [other.step(rows) for _ in range(3)]
    assert same(weights(one), weights(other))


def test_minibatches_share_the_proximal_weights_of_the_steps_start(make):
    trainer = make(Grpo(minibatches=4, clip=0.01), lr=2e-2)
    metrics = trainer.step(sequences_of(trainer))
    assert metrics["behaviour_weight_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["clip_frac"] > 0
    assert trainer.weight_version == 1


def test_log_probabilities_are_taken_at_the_sampling_temperature(make):
    right, wrong = (sequences_of(make(), temperature=temperature) for temperature in (0.5, 1.0))
    assert make(temperature=0.5).step(right)["train_infer_logprob_diff_max"] < 1e-4
    assert make(temperature=0.5).step(wrong)["train_infer_logprob_diff_max"] > 0.1


@pytest.mark.parametrize("sharing", ["on", "off"])
def test_a_call_with_a_temperature_of_its_own_is_trained_at_it(make, sharing):
    def with_temperature(row, temperature):
        call = SequenceCall(start=0, end=len(row.token_ids), reward=row.reward, temperature=temperature)
        return msgspec.structs.replace(row, calls=(call,))

    trainer = make(prefix_sharing=sharing)
    cold, warm = (sequences_of(make(), temperature=temperature) for temperature in (0.5, 1.0))
    rows = [with_temperature(row, 0.5) if number % 2 else warm[number] for number, row in enumerate(cold)]
    assert trainer.step(rows)["train_infer_logprob_diff_max"] < 1e-4
    assert make().step([with_temperature(row, 0.5) for row in cold])["loss"] == pytest.approx(
        make(temperature=0.5).step(cold)["loss"], abs=1e-6
    )


def test_entropy_is_that_of_the_whole_distribution(make):
    trainer = make()
    rows = sequences_of(trainer)
    entropies = []
    for row in rows:
        with torch.no_grad():
            scores = trainer._model(input_ids=torch.as_tensor(row.token_ids)[None]).logits[0, :-1].log_softmax(-1)
        entropies += (-(scores.exp() * scores).sum(-1))[torch.as_tensor(row.loss_mask[1:])].tolist()
    assert trainer.step(rows)["entropy"] == pytest.approx(np.mean(entropies), rel=1e-4)


def test_bfloat16_computes_close_to_float32_and_keeps_float32_weights(make):
    trainer = make(dtype="bfloat16")
    rows = sequences_of(make())
    assert trainer.step(rows)["loss"] == pytest.approx(make().step(rows)["loss"], abs=0.05)
    assert all(parameter.dtype == torch.float32 for parameter in trainer._model.parameters())


# ---------------------------------------------------------------- what is refused


def test_a_batch_with_nothing_to_train_is_refused(make):
    trainer = make()
    rows = [msgspec.structs.replace(row, loss_mask=np.zeros_like(row.loss_mask)) for row in sequences_of(trainer)]
    with pytest.raises(EngineError, match="no sequence of the batch has a trained token"):
        trainer.step(rows)


def test_a_reward_that_is_not_finite_is_refused_by_name(make):
    trainer = make()
    rows = sequences_of(trainer)
    rows[7] = msgspec.structs.replace(rows[7], reward=math.nan)
    with pytest.raises(EngineError, match=r"sequence 7 \(group 2\) is nan"):
        trainer.step(rows)


def test_a_loss_that_is_not_finite_is_refused_and_the_weights_stay(make):
    trainer = make(Grpo(correction=Correction(veto="off")), logprob_check_sequences=0)
    before = weights(trainer)
    rows = [msgspec.structs.replace(row, logprobs=row.logprobs * np.float32(np.nan)) for row in sequences_of(trainer)]
    with pytest.raises(EngineError, match="the loss of step 0 is"):
        trainer.step(rows)
    assert same(before, weights(trainer))
    assert trainer.weight_version == 0


def test_a_model_that_changes_its_logits_after_the_head_is_refused():
    config = Gemma2Config(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    config.final_logit_softcapping = 0.1
    with pytest.raises(EngineError, match="Gemma2ForCausalLM changes its logits after the head"):
        TokenScorer(Gemma2ForCausalLM(config).eval(), 1.0)


def test_greedy_samples_and_folders_without_a_model_are_refused(make, tmp_path):
    with pytest.raises(EngineError, match=r"sampling.temperature = 0"):
        make(temperature=0.0)
    with pytest.raises(SetupError, match="cannot load a model"):
        make_trainer(str(tmp_path))


# ---------------------------------------------------------------- weights in and out


def test_saved_and_loaded_it_continues_to_the_last_bit(make, tmp_path):
    algorithm = Grpo(minibatches=2)
    trainer = make(algorithm)
    rows = [sequences_of(trainer, seed=seed, off=0.2) for seed in range(4)]
    for batch in rows[:2]:
        trainer.step(batch)
    trainer.save(str(tmp_path / "checkpoint"))
    restored = make(algorithm, seed=99)
    restored.load(str(tmp_path / "checkpoint"))
    assert restored.weight_version == 2
    assert [restored.step(batch) for batch in rows[2:]] == [trainer.step(batch) for batch in rows[2:]]
    assert same(weights(trainer), weights(restored))


def test_a_checkpoint_is_a_folder_that_hugging_face_loads(make, tmp_path):
    trainer = make()
    rows = sequences_of(trainer)
    trainer.step(rows)
    trainer.save(str(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert np.array_equal(logps(model, rows[0].token_ids), logps(trainer._model, rows[0].token_ids))
    assert AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "trainer_state.pt").unlink(), "has no trainer_state.pt"),
        (lambda folder: (folder / "trainer_state.pt").write_bytes(b"PK\x03\x04 cut off"), "is damaged"),
        (
            lambda folder: torch.save({"weight_version": 1}, folder / "trainer_state.pt"),
            "lacks adapter, optimizer, rest",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "missing: "),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"short"), "does not contain weights"),
    ],
    ids=["no state", "cut off", "fields", "no weights", "short weights"],
)
def test_an_incomplete_checkpoint_is_refused_with_what_is_missing(make, tmp_path, damage, words):
    make().save(str(tmp_path))
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        make().load(str(tmp_path))


def test_published_weights_read_back_with_the_same_checksum(make, model_folder, tmp_path):
    trainer = make()
    trainer.step(sequences_of(trainer))
    location = trainer.publish(str(tmp_path / "v1"))
    assert location.model == model_folder
    own = weights(trainer)
    assert all(torch.equal(own[name], tensor) for name, tensor in read_weights(location).items())
    assert trainer.publish(str(tmp_path / "again")).checksum == location.checksum
    trainer.step(sequences_of(trainer))
    assert trainer.publish(str(tmp_path / "v2")).checksum != location.checksum


def test_weights_are_published_in_the_dtype_of_the_engines_and_their_checksum_is_that_of_what_was_published(
    make, tmp_path
):
    trainer = make(published_dtype="bfloat16")
    trainer.step(sequences_of(trainer))
    location = trainer.publish(str(tmp_path / "v1"))
    own = weights(trainer)
    assert all(torch.equal(own[name].bfloat16(), tensor) for name, tensor in read_weights(location).items())
    assert {tensor.dtype for tensor in own.values()} == {torch.float32}, "the trained ones stay as they are"
    assert trainer.checksum() == location.checksum
