"""Losses of `areal-actors serve tinker` by their formulas, and its models against plain torch and transformers."""

import math

import numpy as np
import pytest
import torch
from support.tiny_trainer import write_model
from transformers import AutoModelForCausalLM

from areal_actors.core.errors import CheckpointError, RequestError
from areal_actors.tinker.batches import MICROBATCH_TOKENS, TARGETS, micro_batches
from areal_actors.tinker.datums import Datum, ForwardRequest
from areal_actors.tinker.losses import LOSSES, loss_function
from areal_actors.tinker.requests import AdamParams, LoraRequest
from areal_actors.tinker.training_model import TrainingModel

LORA = LoraRequest(rank=4, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def inputs_of(count, seed=0):
    rng = np.random.default_rng(seed)
    drawn = {
        "logprobs": rng.normal(-1.0, 0.5, count),
        "advantages": rng.normal(0.0, 1.0, count),
        "weights": rng.uniform(0.0, 1.0, count),
        "sequence_ratio_mask": (np.arange(count) > 1).astype(float),
    }
    return {name: values.astype(np.float32) for name, values in drawn.items()}


# ------------------------------------------------------------ losses


def ratio(p, q):
    return math.exp(p - q)


def clipped(value, low=0.8, high=1.2):
    return min(max(value, low), high)


def reference(name, p, inputs, options):
    """Element-wise losses, and their derivatives by each p, in plain arithmetic."""
    q, advantages = inputs["logprobs"].tolist(), inputs["advantages"].tolist()
    low, high = options.get("clip_low_threshold", 0.8), options.get("clip_high_threshold", 1.2)
    counted = [t for t in range(len(p)) if inputs["sequence_ratio_mask"][t]]
    of_sequence = math.exp(sum(p[t] - q[t] for t in counted) / len(counted))
    losses, slopes = [], []
    for t, (own, old, advantage) in enumerate(zip(p, q, advantages, strict=True)):
        r = of_sequence if name == "gspo" else ratio(own, old)
        if name == "cross_entropy":
            loss, slope = -own * float(inputs["weights"][t]), -float(inputs["weights"][t])
        elif name == "importance_sampling":
            loss, slope = -r * advantage, -r * advantage
        elif name in ("ppo", "gspo"):
            loss = -min(r * advantage, clipped(r, low, high) * advantage)
            slope = -r * advantage if r * advantage <= clipped(r, low, high) * advantage else 0.0
        elif name == "cispo":
            loss, slope = -clipped(r, low, high) * own * advantage, -clipped(r, low, high) * advantage
        else:
            loss = -(own * advantage - 0.5 * options["beta"] * (own - old) ** 2)
            slope = -(advantage - options["beta"] * (own - old))
        losses.append(loss)
        slopes.append(slope)
    return losses, slopes


@pytest.mark.parametrize(
    "config", [{}, {"clip_low_threshold": 0.6, "clip_high_threshold": 1.05}], ids=["default", "limits"]
)
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_and_gradients_follow_their_formulas(name, config):
    if name in ("cross_entropy", "importance_sampling"):
        config = {}
    if name == "dro":
        config = {"beta": 0.05}
    for seed in range(20):
        drawn = inputs_of(12, seed)
        p = torch.from_numpy(
            np.random.default_rng(100 + seed).normal(-1.0, 0.5, 12).astype(np.float32)
        ).requires_grad_()
        function, options = loss_function(name, config)
        losses = function(p, {key: torch.from_numpy(values) for key, values in drawn.items()}, options)
        losses.sum().backward()
        expected, slopes = reference(name, p.tolist(), drawn, config)
        np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(p.grad.numpy(), slopes, rtol=2e-5, atol=1e-6)


def test_limits_of_single_tokens_replace_those_of_the_request():
    function, options = loss_function("ppo", {"clip_high_threshold": 1.1})
    p, q = torch.zeros(3), torch.full((3,), -1.0)
    inputs = {"logprobs": q, "advantages": torch.ones(3), "clip_high_threshold": torch.tensor([1.5, 2.0, 9.0])}
    np.testing.assert_allclose(function(p, inputs, options), [-1.5, -2.0, -math.e], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "config", "found"),
    [
        ("stable_reinforce", {}, "formula is not published; supported are cross_entropy, importance_sampling"),
        ("sigmoid", {}, "it is unknown"),
        ("ppo", {"epsilon": 0.2}, "loss_fn_config.epsilon: ppo takes clip_high_threshold, clip_low_threshold"),
        ("cross_entropy", {"beta": 1.0}, "cross_entropy takes no options"),
        ("dro", {}, "loss_fn_config.beta is missing"),
        ("dro", {"beta": "much"}, "write a finite number"),
    ],
)
def test_losses_and_options_that_are_not_supported_are_refused(name, config, found):
    with pytest.raises(RequestError, match=found):
        loss_function(name, config)


# ------------------------------------------------------------ models


def datum(seed=0, tokens=7, **inputs):
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, 500, tokens + 1)
    weights = rng.uniform(0.0, 1.0, tokens).astype(np.float32)
    return Datum(ids[:-1], {TARGETS: ids[1:], "weights": weights, **inputs})


def request(data, loss="cross_entropy", *, forward_only=False, **config):
    return ForwardRequest(data=data, loss=loss, loss_config=config, forward_only=forward_only)


def plain_logprobs(model, one):
    scores = model(input_ids=torch.from_numpy(one.token_ids)[None]).logits[0].log_softmax(-1)
    return scores.gather(1, torch.from_numpy(one.inputs[TARGETS].astype(np.int64)).view(len(one.token_ids), -1)).view(
        one.inputs[TARGETS].shape
    )


def plain_loss(model, data):
    return sum(-(plain_logprobs(model, one) * torch.from_numpy(one.inputs["weights"])).sum() for one in data)


def test_two_passes_and_a_step_are_those_of_plain_torch(folder):
    data = [datum(seed, tokens) for seed, tokens in enumerate((7, 3, 11))]
    ours = TrainingModel(folder, None, "cpu")
    plain = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1.0)
    for step, lr in enumerate((1e-2, 3e-3)):
        first, second = ours.forward(request(data[:2])), ours.forward(request(data[2:]))
        loss = plain_loss(plain, data)
        assert first.metrics["loss:sum"] + second.metrics["loss:sum"] == pytest.approx(float(loss.detach()), rel=1e-5)
        for one, found in zip(data, [*first.outputs, *second.outputs], strict=True):
            expected = plain_logprobs(plain, one).detach().numpy()
            np.testing.assert_allclose(found["logprobs"], expected, atol=2e-5)
            np.testing.assert_allclose(found["elementwise_loss"], -expected * one.inputs["weights"], atol=2e-5)
        for group in optimizer.param_groups:
            group.update(lr=lr, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        params = AdamParams(learning_rate=lr, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, grad_clip_norm=0.5)
        assert ours.optim_step(params)["grad_norm"] == pytest.approx(float(norm), rel=1e-4), step
    own = ours._model.state_dict()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(own[name], tensor, atol=2e-4, rtol=1e-3)


def test_several_targets_a_position_have_a_loss_each(folder):
    model = TrainingModel(folder, LORA, "cpu")
    one = datum(0, 5)
    targets = np.stack([one.inputs[TARGETS], np.arange(10, 15)], axis=1)
    wide = Datum(one.token_ids, {TARGETS: targets, "weights": np.ones((5, 2), dtype=np.float32)})
    output = model.forward(request([wide, one]))
    plain = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    np.testing.assert_allclose(output.outputs[0]["logprobs"], plain_logprobs(plain, wide).detach().numpy(), atol=2e-5)
    assert output.outputs[1]["logprobs"].shape == (5,)


def test_a_forward_pass_alone_leaves_no_gradient(folder):
    model = TrainingModel(folder, LORA, "cpu")
    model.forward(request([datum()], forward_only=True))
    with pytest.raises(RequestError, match="optim_step has no gradient"):
        model.optim_step(AdamParams())
    model.forward(request([datum()]))
    model.optim_step(AdamParams())
    with pytest.raises(RequestError, match="optim_step has no gradient"):
        model.optim_step(AdamParams())


def test_an_adapter_is_trained_alone_and_starts_as_the_base_model(folder):
    model = TrainingModel(folder, LORA, "cpu")
    before = {name: tensor.clone() for name, tensor in model._model.state_dict().items()}
    plain = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    first = model.forward(request([datum()])).metrics["loss:sum"]
    assert first == pytest.approx(float(plain_loss(plain, [datum()]).detach()), rel=1e-5)
    model.optim_step(AdamParams(learning_rate=1e-2))
    changed = {name for name, tensor in model._model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all(".lora_" in name for name in changed)
    assert model.forward(request([datum()])).metrics["loss:sum"] < first


@pytest.mark.parametrize(("flags", "layers"), [({"train_mlp": False}, "self_attn"), ({"train_attn": False}, "mlp")])
def test_an_adapter_has_the_layers_that_are_asked_for(folder, flags, layers):
    model = TrainingModel(folder, LoraRequest(rank=2, **flags), "cpu")
    adapted = {name for name in model._model.state_dict() if ".lora_A." in name}
    assert adapted
    assert all(layers in name for name in adapted)


def test_an_adapter_that_cannot_be_made_is_refused(folder):
    with pytest.raises(RequestError, match="rank is 0"):
        TrainingModel(folder, LoraRequest(rank=0), "cpu")
    with pytest.raises(RequestError, match="set train_attn or train_mlp"):
        TrainingModel(folder, LoraRequest(rank=2, train_mlp=False, train_attn=False), "cpu")


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "full"])
def test_a_checkpoint_continues_with_its_optimizer_or_with_a_new_one(folder, lora, tmp_path):
    model = TrainingModel(folder, lora, "cpu")
    params = AdamParams(learning_rate=1e-2)

    def step(one):
        one.forward(request([datum()]))
        one.optim_step(params)
        return {name: tensor.clone() for name, tensor in one._model.state_dict().items()}

    step(model)
    model.save(tmp_path / "saved")
    saved = {name: tensor.clone() for name, tensor in model._model.state_dict().items()}
    expected = step(model)
    for optimizer in (True, False):
        other = TrainingModel(folder, lora, "cpu")
        other.load(tmp_path / "saved", optimizer=optimizer)
        assert all(torch.equal(tensor, saved[name]) for name, tensor in other._model.state_dict().items())
        found = step(other)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items()) == optimizer
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").float().eval()
    assert float(plain_loss(merged, [datum()]).detach()) < float(
        plain_loss(AutoModelForCausalLM.from_pretrained(folder), [datum()]).detach()
    )


def test_a_checkpoint_of_another_adapter_is_refused(folder, tmp_path):
    TrainingModel(folder, LORA, "cpu").save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="different"):
        TrainingModel(folder, LoraRequest(rank=8), "cpu").load(tmp_path / "saved", optimizer=True)


@pytest.mark.parametrize(
    ("data", "loss", "found"),
    [
        ([], "cross_entropy", "has no data"),
        ([Datum(np.zeros(0, dtype=np.int64), {})], "cross_entropy", "model_input is empty"),
        ([Datum(np.array([5]), {})], "cross_entropy", "lacks target_tokens; it holds nothing"),
        ([datum(), datum()], "ppo", "datum 0: loss_fn_inputs lacks advantages; it holds target_tokens, weights"),
        (
            [Datum(np.array([5, 6]), {TARGETS: np.array([6])})],
            "cross_entropy",
            r"target_tokens has shape \[1\], expected \[2\]",
        ),
        (
            [Datum(np.array([5]), {TARGETS: np.array([999_999])})],
            "cross_entropy",
            "target_tokens holds a token outside of 0 to",
        ),
        ([Datum(np.array([-1]), {TARGETS: np.array([6])})], "cross_entropy", "model_input holds a token outside"),
        (
            [datum(0, 2, weights=np.ones(3, dtype=np.float32))],
            "cross_entropy",
            r"weights has shape \[3\], and target_tokens \[2\]",
        ),
        (
            [datum(0, 2, weights=np.array([1, np.nan], dtype=np.float32))],
            "cross_entropy",
            "weights holds a value that is not finite",
        ),
    ],
)
def test_data_that_does_not_fit_is_refused_before_anything_is_computed(folder, data, loss, found):
    model = TrainingModel(folder, LORA, "cpu")
    with pytest.raises(RequestError, match=found):
        model.forward(request(data, loss))
    assert not model._has_gradient


def test_a_loss_that_is_not_finite_discards_the_gradient(folder):
    model = TrainingModel(folder, LORA, "cpu")
    model.forward(request([datum()]))
    far = datum(0, 3, logprobs=np.full(3, -1e4, dtype=np.float32), advantages=np.ones(3, dtype=np.float32))
    with pytest.raises(RequestError, match="the loss importance_sampling is -inf"):
        model.forward(request([far], "importance_sampling"))
    with pytest.raises(RequestError, match="no gradient"):
        model.optim_step(AdamParams())


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"learning_rate": -1.0}, "learning_rate is -1"),
        ({"beta2": 1.0}, "beta2 is 1"),
        ({"eps": math.nan}, "eps is nan"),
    ],
)
def test_parameters_out_of_range_are_refused(folder, params, found):
    model = TrainingModel(folder, LORA, "cpu")
    model.forward(request([datum()]))
    with pytest.raises(RequestError, match=found):
        model.optim_step(AdamParams(**params))


def test_micro_batches_hold_every_datum_once_within_the_budget():
    sizes = [MICROBATCH_TOKENS + 5, 3000, 2000, 1500, 1000, 10, 5]
    data = [Datum(np.ones(size, dtype=np.int64), {TARGETS: np.ones(size, dtype=np.int64)}) for size in sizes]
    wide = Datum(np.ones(100, dtype=np.int64), {TARGETS: np.ones((100, 40), dtype=np.int64)})
    parts = list(micro_batches([*data, wide]))
    assert sorted(index for part in parts for index in part) == list(range(8))
    for part in parts[1:]:
        assert max(4000 if index == 7 else sizes[index] for index in part) * len(part) <= MICROBATCH_TOKENS
    assert parts[0] == [0]
