"""A base in 4 or 8 bits under an adapter: what is computed, what engines sample from, and what is restored."""

import importlib.util
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_engine import CONTEXT, SETTINGS, complete, prompt_of, running
from support.tiny_trainer import logps, make_trainer, same, sequences_of, weights, write_model
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import EngineError, RecipeError, SetupError
from areal_actors.core.values import SamplingParams
from areal_actors.recipe.load import load
from areal_actors.training.quantized_base.packed_weights import BLOCK, FLOAT8, PACKERS, can_pack, pack_weight
from areal_actors.training.quantized_base.quantized_linear import QuantizedLinear
from areal_actors.training.quantized_base.recipe_check import LIBRARIES
from areal_actors.training.settings import LoraSettings, OptimizerSettings
from areal_actors.weights.transfer import read_weights

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
LEVELS = 16
"""Values of a number of 4 bits."""
LARGEST_ERROR = 0.17
"""Half of the widest gap between two levels of NF4, 0.152, and the rounding of a scale, as a share of the scale."""


@pytest.fixture(params=[*LIBRARIES, FLOAT8])
def library(request):
    if request.param in LIBRARIES and importlib.util.find_spec(request.param) is None:
        pytest.skip(f"pip install 'areal-actors[{request.param}]'")
    return request.param


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(library):
    return LoraSettings(rank=4, alpha=8, quantize_base=library)


@pytest.fixture
def make(model_folder, settings):
    return partial(make_trainer, model_folder, lora=settings, lr=2e-2)


def stepped(trainer, steps=2):
    for seed in range(steps):
        trainer.step(sequences_of(trainer, seed=seed))
    return trainer


def factors_of(trainer):
    return {name: tensor for name, tensor in weights(trainer).items() if "lora_" in name}


def test_a_block_has_sixteen_levels_and_is_rounded_to_the_nearest(library):
    if library == FLOAT8:
        pytest.skip("has no blocks")
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(0))
    _, rounded = pack_weight(library, weight, CPU)
    blocks, exact = rounded.view(-1, BLOCK), weight.view(-1, BLOCK)
    assert max(len(block.unique()) for block in blocks) <= LEVELS
    scales = exact.abs().max(dim=1, keepdim=True).values
    assert ((exact - blocks).abs() / scales).max() < LARGEST_ERROR
    assert (rounded - weight).norm() / weight.norm() < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_layer_is_the_linear_layer_of_the_rounded_matrix(library, dtype, bias):
    torch.manual_seed(0)
    exact = nn.Linear(64, 80, bias=bias).requires_grad_(False).to(dtype)
    packed, rounded = pack_weight(library, exact.weight, CPU)
    layer = QuantizedLinear(exact, packed)
    seen, wanted = (torch.randn(2, 7, 64, dtype=dtype, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    ours, theirs = (
        layer(seen.requires_grad_()),
        functional.linear(wanted.requires_grad_(), rounded.to(dtype), exact.bias),
    )
    assert torch.equal(ours, theirs)
    for output in (ours, theirs):
        (output * torch.linspace(-1, 1, output.numel(), dtype=dtype).view_as(output)).sum().backward()
    assert torch.equal(seen.grad, wanted.grad)
    assert set(layer.state_dict()) == ({"bias"} if bias else set())


def test_matrices_that_do_not_fill_whole_blocks_are_left_as_they_are():
    assert can_pack("torchao", torch.zeros(3, 64))
    assert not can_pack("torchao", torch.zeros(3, 50))
    assert can_pack(FLOAT8, torch.zeros(3, 50))
    for form in PACKERS:
        assert not can_pack(form, torch.zeros(64))


def test_a_value_in_float8_is_the_nearest_number_of_its_row():
    """Beside a table of all numbers of E4M3, computed from the bits of its sign, exponent and fraction."""
    exponents, fractions = np.divmod(np.arange(127), 8)  # 127 is NaN
    positive = np.where(exponents > 0, (8 + fractions) * 2.0 ** (exponents - 10.0), fractions * 2.0**-9)
    numbers = np.concatenate([-positive[:0:-1], positive])
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 40)[:, None]
    weight[7] = 0
    packed, rounded = pack_weight(FLOAT8, weight, CPU)
    scale = np.maximum(weight.abs().amax(dim=1, keepdim=True).double().numpy(), 1e-30) / numbers[-1]
    exact = weight.double().numpy() / scale
    nearest = np.abs(exact[..., None] - numbers).min(axis=-1)
    assert np.abs(rounded.double().numpy() / scale - exact) == pytest.approx(nearest, abs=1e-4)
    assert torch.equal(rounded[7], torch.zeros(96))
    assert 0.01 < (rounded - weight).norm() / weight.norm() < 0.03
    assert packed._packed.element_size() == 1
    assert torch.equal(pack_weight(FLOAT8, rounded, CPU)[1], rounded), "what is rounded stays"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_adapter_takes_the_steps_of_one_over_the_rounded_base(make, library, tmp_path, dtype):
    descent = OptimizerSettings(name="sgd", lr=1.0)
    trainer = make(dtype=dtype, optimizer=descent)
    base = trainer.publish(str(tmp_path / "v0")).base
    plain = make_trainer(base, lora=LoraSettings(rank=4, alpha=8), optimizer=descent, dtype=dtype)
    before = factors_of(plain)
    assert same(before, weights(trainer))
    rows = sequences_of(plain)
    assert torch.equal(trainer.logp(rows), plain.logp(rows))
    for seed in range(3):
        rows = sequences_of(plain, seed=seed)
        metrics, expected = trainer.step(rows), plain.step(rows)
        assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
        low, high = (0.01, 0.04) if library == FLOAT8 else (0.05, 0.12)
        assert low < metrics["base_rounding_error"] < high
    ours, after = factors_of(trainer), factors_of(plain)
    assert len(after) == 2 * 7 * 2
    moved = max(float((after[name] - before[name]).abs().max()) for name in after)
    assert max(float((after[name] - ours[name]).abs().max()) for name in after) < 1e-4 * moved


async def test_an_engine_samples_as_the_trainer_scores_at_every_version(make, model_folder, tmp_path):
    trainer = make()
    first = trainer.publish(str(tmp_path / "v0"))
    assert (first.model, Path(first.base).parent) == (model_folder, tmp_path)
    async with running(first.base, msgspec.structs.replace(SETTINGS, max_model_len=CONTEXT)) as engine:
        for version in range(1, 4):
            trainer.step(sequences_of(trainer, seed=version))
            location = trainer.publish(str(tmp_path / f"v{version}"))
            assert location.base == first.base
            await engine.load_weights(location, version)
            chunk = await complete(engine, prompt_of(7), SamplingParams(max_tokens=30, seed=version))
            ids = [*prompt_of(7), *chunk.columns.ids_array()]
            assert chunk.columns.logprobs_array() == pytest.approx(logps(trainer._model, ids)[6:], abs=1e-4)
    exact = AutoModelForCausalLM.from_pretrained(model_folder)
    rounded = AutoModelForCausalLM.from_pretrained(first.base)
    assert abs(logps(exact, ids) - logps(rounded, ids)).max() > 1e-2


async def test_an_engine_with_the_base_that_is_not_rounded_refuses_the_adapter(make, model_folder, tmp_path):
    location = make().publish(str(tmp_path / "v0"))
    async with running(model_folder) as engine:
        with pytest.raises(EngineError, match=f"belongs to {location.base}, but this engine serves"):
            await engine.load_weights(location, 1)


@pytest.mark.parametrize("published", ["adapter", "merged"])
def test_merged_weights_and_checkpoints_have_the_rounded_base(make, settings, tmp_path, published):
    trainer = stepped(make(lora=msgspec.structs.replace(settings, published=published)))
    trainer.save_model(str(tmp_path / "saved"))
    ids = sequences_of(trainer)[0].token_ids
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert logps(saved, ids) == pytest.approx(logps(trainer._model, ids), abs=1e-5)
    location = trainer.publish(str(tmp_path / "v2"))
    assert bool(location.base) == (published == "adapter")
    if published == "merged":
        sent = read_weights(location)
        assert same(sent, saved.state_dict())


def test_saved_and_loaded_it_continues_to_the_last_bit(make, tmp_path):
    trainer = stepped(make())
    base = trainer.publish(str(tmp_path / "v2")).base
    written = Path(base, "model.safetensors").stat().st_mtime_ns
    trainer.save(str(tmp_path / "saved"))
    restored = make(seed=9)
    restored.load(str(tmp_path / "saved"))
    rows = sequences_of(trainer, seed=7)
    assert restored.step(rows) == trainer.step(rows)
    assert same(weights(trainer), weights(restored))
    assert restored.publish(str(tmp_path / "v3")).base == base
    assert Path(base, "model.safetensors").stat().st_mtime_ns == written


def test_only_the_packed_matrices_are_kept(make):
    trainer = make()
    layers = [module for module in trainer._model.modules() if isinstance(module, QuantizedLinear)]
    assert len(layers) == 7 * 2
    assert all(layer.weight is None for layer in layers)
    assert not any("base_layer" in name for name in weights(trainer))


def test_a_model_without_such_a_layer_is_refused(make, monkeypatch):
    monkeypatch.setattr("areal_actors.training.quantized_base.rounded_base.can_pack", lambda form, weight: False)
    with pytest.raises(SetupError, match="has no linear layer that can be packed"):
        make()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), ""),
        (("trainer.ranks=2",), "trainer.ranks = 2 would have to split packed matrices"),
        (("trainer.compile=true",), "packed layers are not compiled"),
        (
            ("generation.engine=vllm", 'generation.server.urls=["http://far:8000"]', "trainer.lora.published=adapter"),
            "servers that were started elsewhere",
        ),
        (
            ("generation.engine=vllm", 'generation.server.urls=["http://far:8000"]', "trainer.ranks=1"),
            "",
        ),
        (("bus.host=10.0.0.1",), "joined hosts"),
        (("bus.host=10.0.0.1", "trainer.lora.published=merged"), ""),
    ],
)
def test_what_cannot_carry_it_is_refused_by_name(library, monkeypatch, overrides, words):
    monkeypatch.chdir(ROOT)
    asked = [f"trainer.lora.quantize_base={library}", *overrides]
    if not words:
        assert refusal_of(asked) == ""
    else:
        assert f'`trainer.lora.quantize_base`: found "{library}", but {words}' in refusal_of(asked)


def refusal_of(overrides):
    """The complaints about the setting, empty if there are none."""
    try:
        load([Path("recipes/gsm8k_grpo.toml")], list(overrides), cuda=CudaDevices(2, "2 CUDA devices"))
    except RecipeError as error:
        return "\n".join(line for line in str(error).splitlines() if "quantize_base" in line)
    return ""


@pytest.mark.parametrize(
    ("installed", "remedy"),
    [
        (set(), "not installed: pip install 'areal-actors[torchao]'"),
        ({"bitsandbytes"}, "not installed: pip install 'areal-actors[torchao]', or write \"bitsandbytes\", which is"),
    ],
)
def test_an_absent_library_is_refused_with_what_installs_it(monkeypatch, installed, remedy):
    monkeypatch.chdir(ROOT)
    check = "areal_actors.training.quantized_base.recipe_check.is_installed"
    monkeypatch.setattr(check, lambda library: library in installed)
    assert refusal_of(["trainer.lora.quantize_base=torchao"]).endswith(remedy)
    assert {*LIBRARIES, FLOAT8} == set(PACKERS)
