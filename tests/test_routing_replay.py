"""Routing replay: the trainer sends positions to the experts that the engine chose, with weights and gradients of its
own router."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_engine import VOCABULARY, random_qwen, save
from support.tiny_mixture import EXPERTS, ROUTES, plain_routes, random_mixture, save_mixture
from support.tiny_trainer import logps, make_trainer
from transformers import AutoModelForCausalLM

from areal_actors.core.errors import SetupError
from areal_actors.core.routes import RouteShape, shape_of_config
from areal_actors.core.values import TrainingSequence
from areal_actors.training.algorithms import Grpo
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.packing.tensors import make_micro_batches
from areal_actors.training.settings import OptimizerSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_mixture(tmp_path_factory.mktemp("mixture"))


def rows_of(model, *, groups=3, members=3, prompt=12, completion=10, seed=0):
    """Rows of groups with one prompt each, as this model sampled them: its log-probabilities and its routes."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        begun = rng.integers(3, VOCABULARY, prompt)
        for _ in range(members):
            ids = np.concatenate([begun, rng.integers(3, VOCABULARY, completion - rng.integers(0, 5))]).astype(np.int64)
            sampled = np.arange(len(ids)) >= prompt
            rows.append(
                TrainingSequence(
                    token_ids=ids,
                    loss_mask=sampled,
                    logprobs=np.where(sampled, np.concatenate([[0.0], logps(model, ids)]), 0).astype(np.float32),
                    versions=np.where(sampled, 0, -1).astype(np.int32),
                    group=group,
                    reward=float(rng.integers(0, 3)),
                    truncated=False,
                    routes=plain_routes(model, ids.tolist()),
                )
            )
    return rows


def without_routes(rows):
    return [msgspec.structs.replace(row, routes=b"") for row in rows]


def with_close_routers(model, folder: Path, size: float = 0.02):
    """The same model but for routers that differ a little from it: as an engine of another precision, it often chooses
    other experts."""
    other = AutoModelForCausalLM.from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(1)
    for number in ROUTES.layers:
        gate = other.model.layers[number].mlp.gate.weight
        gate.data += size * gate.data.std() * torch.randn(gate.shape, generator=generator)
    return other


def own_mismatch(rows, model):
    """Share of positions and layers for which this model chooses other experts than the rows have."""
    theirs = np.concatenate([np.sort(ROUTES.unpack(row.routes)) for row in rows])
    ours = np.concatenate([np.sort(ROUTES.unpack(plain_routes(model, row.token_ids.tolist()))) for row in rows])
    return float((theirs != ours).any(-1).mean())


def differences(trainer, rows):
    recorded = np.concatenate([row.logprobs[row.loss_mask] for row in rows])
    return np.abs(trainer.logp(rows).numpy() - recorded)


def gradients(trainer):
    return {
        name: parameter.grad.clone()
        for name, parameter in trainer._model.named_parameters()
        if parameter.grad is not None
    }


def test_a_shape_is_read_from_the_configuration_and_fixes_the_bytes_of_a_position(folder):
    assert shape_of_config(AutoModelForCausalLM.from_pretrained(folder).config.to_dict()) == ROUTES
    assert ROUTES.position_bytes == 2 * 2
    many = RouteShape(layers=(0,), experts=300, top_k=3, blocks=1)
    chosen = np.array([[[0, 299, 256]]])
    assert len(many.pack(chosen)) == many.position_bytes == 6
    assert (many.unpack(many.pack(chosen)) == chosen).all()
    assert shape_of_config({"model_type": "qwen3", "num_hidden_layers": 2}) is None


def test_routes_of_another_model_are_refused():
    assert ROUTES.fault(bytes(8), 2) is None
    assert (
        str(ROUTES.fault(bytes(7))) == "routes: 7 bytes; a multiple of 4 was expected, for 2 layers with 2 experts each"
    )
    assert str(ROUTES.fault(bytes(12), 2)) == "routes: 3 positions; at most 2 were expected"
    assert (
        str(ROUTES.fault(bytes([0, 1, 2, 3, 4, 5, 8, 7])))
        == "routes: expert 8 at position 1; the model's experts are 0 to 7"
    )


def test_replay_of_its_own_choice_changes_nothing(folder):
    trainer = make_trainer(folder)
    rows = rows_of(trainer._model)
    assert torch.allclose(trainer.logp(rows), trainer.logp(without_routes(rows)), atol=3e-6)
    assert own_mismatch(rows, trainer._model) == 0.0
    metrics = trainer.step(rows)
    assert metrics["routing_mismatch"] == 0.0
    assert metrics["routing_replayed"] == 1.0


def test_without_replay_close_routers_give_other_log_probabilities_and_with_it_they_agree(folder, monkeypatch):
    """The engine's routers differ by a rounding: where two experts are close, it chooses the other one."""
    trainer = make_trainer(folder)
    rows = rows_of(with_close_routers(trainer._model, folder), groups=6)
    flipped = own_mismatch(rows, trainer._model)
    assert 0 < flipped < 0.2
    unlike, like = differences(trainer, without_routes(rows)), differences(trainer, rows)
    assert like.max() < 0.02
    assert unlike.max() > 0.1
    assert like.mean() < unlike.mean() / 3
    metrics = trainer.step(rows)
    assert metrics["routing_mismatch"] == pytest.approx(flipped, abs=0.01)
    assert metrics["train_infer_logprob_diff_max"] < 0.02


def test_experts_have_the_weights_of_the_trainers_router_and_its_gradient(folder):
    """Against a reference: the block's output as a sum over the recorded experts, written out."""
    model, rng = random_mixture(0), np.random.default_rng(0)
    trainer = make_trainer(folder)
    block = model.model.layers[0].mlp
    hidden = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor(np.array([rng.choice(EXPERTS, 2, replace=False) for _ in range(5)]))
    shares = (block.gate.weight @ hidden.T).T.gather(1, chosen).softmax(-1)
    expected = torch.stack(
        [
            sum(
                share * one_expert(block.experts, int(expert), token)
                for share, expert in zip(own, chosen[place], strict=True)
            )
            for place, (own, token) in enumerate(zip(shares, hidden, strict=True))
        ]
    )
    expected.square().sum().backward()
    replayed = trainer._model.model.layers[0].mlp
    replayed.gate.routes = chosen.to(torch.int16)
    found = replayed(hidden[None])[0]
    found.square().sum().backward()
    assert torch.allclose(found, expected, atol=1e-6)
    assert float(block.gate.weight.grad.abs().max()) > 0
    assert torch.allclose(replayed.gate.weight.grad, block.gate.weight.grad, atol=1e-5)


def one_expert(experts, number, token):
    gate, up = (experts.gate_up_proj[number] @ token).chunk(2)
    return experts.down_proj[number] @ (torch.nn.functional.silu(gate) * up)


def test_a_prefix_is_shared_as_far_as_its_routes_are_the_same(folder):
    trainer = make_trainer(folder)
    rows = rows_of(trainer._model, groups=1, members=2)
    other = ROUTES.unpack(rows[1].routes).copy()
    other[6] = (other[6] + 1) % EXPERTS
    apart = [rows[0], msgspec.structs.replace(rows[1], routes=ROUTES.pack(other))]

    def computed(rows, routes=ROUTES):
        (batch,) = make_micro_batches(rows, range(2), 4096, torch.device("cpu"), sharing="on", routes=routes)
        return batch

    assert computed(rows).computed_tokens == computed(rows, routes=None).computed_tokens
    assert (
        computed(rows).computed_tokens + 6
        <= computed(apart).computed_tokens
        < sum(len(row.token_ids) - 1 for row in rows)
    )
    batch = computed(apart)
    assert sorted(batch.token_ids[0].tolist()) != sorted(computed(rows).token_ids[0].tolist())
    unshared = make_trainer(folder, prefix_sharing="off")
    for found in (rows, apart, [rows[0], without_routes(rows)[1]]):
        assert torch.allclose(trainer.logp(found), unshared.logp(found), atol=3e-6)
    assert not torch.allclose(trainer.logp(apart), trainer.logp(rows), atol=1e-3)


@pytest.mark.parametrize(
    "settings", [{"prefix_sharing": "off"}, {"recompute_activations": True}, {"microbatch_tokens": 40}], ids=str
)
def test_every_layout_of_micro_batches_trains_the_same(folder, settings):
    optimizer = OptimizerSettings(name="sgd", lr=0.1)
    plain = make_trainer(folder, optimizer=optimizer)
    rows = rows_of(with_close_routers(plain._model, folder, 0.1))
    rows[-1] = msgspec.structs.replace(rows[-1], routes=rows[-1].routes[: 5 * ROUTES.position_bytes])
    other = make_trainer(folder, optimizer=optimizer, **settings)
    expected, found = plain.step(rows), other.step(rows)
    assert 0 < expected["routing_replayed"] < 1
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["routing_replayed"] == expected["routing_replayed"]
    for name, gradient in gradients(plain).items():
        assert float((gradients(other)[name] - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()) + 1e-9, name


def test_another_policy_chooses_its_own_experts(folder):
    """The reference policy has not sampled: its log-probabilities do not depend on the recorded routes."""
    trainer = make_trainer(folder, Grpo(kl=Kl(coefficient=0.1)))
    rows = rows_of(with_close_routers(trainer._model, folder, 0.3))
    with_routes, without = trainer.prepare(rows), trainer.prepare(without_routes(rows))
    assert torch.allclose(with_routes.tokens.reference, without.tokens.reference, atol=3e-6)
    assert not torch.allclose(trainer.logp(rows), trainer.logp(without_routes(rows)), atol=1e-3)


def test_the_check_compares_tokens_before_which_all_experts_are_of_their_version(folder):
    """A completion under weights 0, and from its seventh token on under weights 1, which computed the positions before
    it again."""
    trainer = make_trainer(folder, lr=3e-2)
    rows = rows_of(trainer._model, groups=1)
    trainer.step(rows)
    later = random_mixture(0)
    later.load_state_dict(trainer._model.state_dict())
    mixed = []
    for row in rows_of(later, groups=1, seed=0):
        old = next(one for one in rows if np.array_equal(one.token_ids, row.token_ids))
        cut = len(row.token_ids) - 4
        begun = np.arange(len(row.token_ids)) < cut
        mixed.append(
            msgspec.structs.replace(
                row,
                logprobs=np.where(begun, old.logprobs, row.logprobs),
                versions=np.where(begun, old.versions, 1).astype(np.int32),
                routes=old.routes[: (cut - 1) * ROUTES.position_bytes]
                + row.routes[(cut - 1) * ROUTES.position_bytes :],
            )
        )
    assert own_mismatch(mixed, later) > 0
    metrics = trainer.prepare(mixed).metrics
    assert metrics["train_infer_logprob_diff_max"] < 1e-4
    assert metrics["parity_tokens"] == sum(np.count_nonzero(row.versions == 0) for row in mixed)
    assert differences(trainer, mixed).max() > 1e-3


def test_off_ignores_routes_and_on_refuses_a_dense_model(folder, tmp_path):
    trainer = make_trainer(folder, routing_replay="off")
    rows = rows_of(with_close_routers(trainer._model, folder, 0.3))
    assert torch.equal(trainer.logp(rows), trainer.logp(without_routes(rows)))
    assert "routing_mismatch" not in trainer.step(rows)
    dense = save(random_qwen(0), tmp_path)
    refusal = r'routing_replay = "on": the model in .* is not a mixture of experts of type qwen3_moe; write "auto"'
    with pytest.raises(SetupError, match=refusal):
        make_trainer(dense, routing_replay="on")
    assert "routing_mismatch" not in make_trainer(dense).step(without_routes(rows))
