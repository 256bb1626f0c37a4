"""The check of the embedded engine at its start: what rounding explains is accepted, what only wrong arithmetic
explains is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.samples import letters
from support.tiny_engine import CONTEXT, SETTINGS, random_qwen, save
from transformers import Qwen3Config, Qwen3ForCausalLM

from areal_actors.core.errors import SetupError
from areal_actors.embedded.decoders import ModelDecoder, SlotDecoder, load_model
from areal_actors.embedded.fused_decoder import FusedDecoder
from areal_actors.embedded.start_check import (
    PROBE_TOKENS,
    check_decoder,
    make_decoder,
    probe_ids,
    sampled_logprob_difference,
)
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer

PROBE = np.arange(3, 15)
"""Token ids for the check; these models have no text."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(random_qwen(0), tmp_path_factory.mktemp("model"))


def test_the_lean_forward_and_the_models_own_agree_and_share_their_weights(folder: str) -> None:
    model = load_model(folder, SETTINGS)
    fused, plain = FusedDecoder(model, 4, CONTEXT), ModelDecoder(model, 4, CONTEXT)
    for parameters in (random_qwen(1), random_qwen(2)):
        model.load_state_dict(parameters.state_dict())
        fused.refresh()
        assert sampled_logprob_difference(fused, model, PROBE) < 1e-5
        assert sampled_logprob_difference(plain, model, PROBE) < 1e-5


def test_a_model_that_slots_do_not_reproduce_is_refused(folder: str) -> None:
    model = load_model(folder, SETTINGS)
    original = model.forward
    model.forward = lambda *arguments, **options: original(*arguments, **{**options, "position_ids": None})
    model.__class__ = type("OddForCausalLM", (type(model),), {})
    with pytest.raises(SetupError, match=r'(?s)OddForCausalLM.*generation.start_check = "warn"'):
        make_decoder(model, 4, CONTEXT, PROBE)
    decoder, finding = make_decoder(model, 4, CONTEXT, PROBE, start_check="warn")
    assert "OddForCausalLM" in finding
    assert decoder.kv_cache.context == CONTEXT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_massive_activations_on_tokens_that_no_text_contains_refuse_no_model(folder: str, dtype: str) -> None:
    """As in trained models: on special tokens activations of 25,000, which make rounding visible, on text none."""
    model = load_model(folder, GenerationSettings(device="cpu", max_model_len=CONTEXT, dtype=dtype))
    tokenizer = ChatTokenizer.load(folder)
    probe = probe_ids(tokenizer, model.config.vocab_size)
    with torch.no_grad():
        unused = sorted(set(range(model.config.vocab_size)) - set(probe.tolist()))[:12]
        model.get_input_embeddings().weight[unused] *= 25_000
    decoder, finding = make_decoder(model, 4, CONTEXT, probe)
    assert finding == ""
    special = check_decoder(decoder, model, np.array(unused))
    assert special.difference < special.allowed, "the bound is that of the text it is measured on"


def test_a_difference_beyond_rounding_is_a_finding_and_a_larger_one_a_refusal(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(folder, SETTINGS)
    decode = FusedDecoder.decode
    for error, refused in ((0.0, False), (0.004, False), (5.0, True)):
        ramp = torch.linspace(-1, 1, model.config.vocab_size) * error
        monkeypatch.setattr(
            FusedDecoder,
            "decode",
            lambda self, token_ids, positions, ramp=ramp: decode(self, token_ids, positions) + ramp,
        )
        if refused:
            with pytest.raises(SetupError, match="the most that is accepted"):
                make_decoder(model, 4, CONTEXT, PROBE)
        else:
            assert bool(make_decoder(model, 4, CONTEXT, PROBE)[1]) == bool(error)


@pytest.mark.parametrize("kind", [FusedDecoder, ModelDecoder])
@pytest.mark.parametrize(
    ("layers", "matrices", "embeddings"), [(2, 1.0, 4.5), (28, 1.0, 1.0), (28, 1.5, 4.5), (28, 3.0, 3.0)]
)
def test_many_layers_in_bfloat16_are_accepted_and_one_wrong_position_is_not(
    kind: type[SlotDecoder], layers: int, matrices: float, embeddings: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For models from flat to very sharp: freshly made weights times these factors."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    config = Qwen3Config(
        **shape, vocab_size=4096, num_hidden_layers=layers, max_position_embeddings=CONTEXT, tie_word_embeddings=True
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.mul_(embeddings if "embed" in name else matrices)
    sound = check_decoder(kind(model, 4, CONTEXT), model, PROBE)
    assert sound.difference < sound.allowed
    decode = kind.decode
    monkeypatch.setattr(
        kind, "decode", lambda self, token_ids, positions: decode(self, token_ids, np.maximum(positions - 1, 0))
    )
    wrong = check_decoder(kind(model, 4, CONTEXT), model, PROBE)
    assert wrong.difference > wrong.refused


def test_a_model_with_fewer_ids_than_its_tokenizer_has_a_probe_all_the_same():
    probe = probe_ids(letters(), 5)
    assert (len(probe), set(probe.tolist())) == (PROBE_TOKENS, set(range(5)))
