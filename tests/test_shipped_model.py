"""The embedded model in the package is what its code makes, and a run of the default recipe begins with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from areal_actors.embedded import kept_models
from areal_actors.embedded.embedded_model import initial_model, make_embedded_model, train_tokenizer
from areal_actors.embedded.kept_models import SHIPPED, kept_model
from areal_actors.embedded.settings import SHIPPED_SEED, WarmStart, is_shipped
from areal_actors.embedded.warm_start import Demonstrations

BRIEF = WarmStart(steps=1, tail_steps=1, batch_size=2)


def refuse_step(*_):
    raise AssertionError("a step was taken")


def test_no_step_is_taken_for_the_default_seed_with_any_number_of_threads(tmp_path):
    assert {kept_model(tmp_path / "models", WarmStart(), SHIPPED_SEED, threads, refuse_step) for threads in (1, 2)} == {
        str(SHIPPED)
    }
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(("changed", "seed"), [({}, 1), ({"steps": 999}, 0), ({"skills": ("boxed",)}, 0)])
def test_other_seeds_and_settings_are_made(changed, seed):
    assert not is_shipped(WarmStart(**changed), seed)


def test_a_damaged_one_is_not_used(tmp_path, monkeypatch):
    damaged = tmp_path / "damaged"
    shutil.copytree(SHIPPED, damaged)
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    steps = []
    monkeypatch.setattr(kept_models, "SHIPPED", damaged)
    monkeypatch.setattr(kept_models, "is_shipped", lambda *_: True)
    folder = kept_model(tmp_path / "models", BRIEF, 0, 1, lambda *step: steps.append(step))
    assert Path(folder).parent == tmp_path / "models"
    assert len(steps) == 2


def test_tokenizer_and_form_are_those_of_the_code():
    tokenizer = train_tokenizer()
    assert json.loads(tokenizer.to_str()) == json.loads((SHIPPED / "tokenizer.json").read_text())
    made = initial_model(tokenizer, SHIPPED_SEED, conversational=False, head_dim=WarmStart().head_dim)
    shipped = Qwen3ForCausalLM.from_pretrained(SHIPPED)
    of_code, of_file = made.config.to_dict(), shipped.config.to_dict()
    ignored = {"_name_or_path", "dtype", "architectures", "transformers_version"}
    assert {key: value for key, value in of_code.items() if key not in ignored} == {
        key: value for key, value in of_file.items() if key not in ignored
    }
    assert {name: value.shape for name, value in made.state_dict().items()} == {
        name: value.shape for name, value in shipped.state_dict().items()
    }


@pytest.mark.long
def test_the_code_makes_a_model_that_answers_as_this_one(tmp_path):
    make_embedded_model(str(tmp_path / "made"), WarmStart(), SHIPPED_SEED, 1, lambda *_: None)
    shortcuts = WarmStart().tail_shortcut_fraction
    rows = Demonstrations(SHIPPED, WarmStart().skills, seed=SHIPPED_SEED + 1).take(200, shortcuts)
    made, shipped = (mean_loss(folder, rows) for folder in (tmp_path / "made", SHIPPED))
    assert made == pytest.approx(shipped, abs=0.05)
    assert shipped < 0.7


def mean_loss(folder, rows):
    model, total, count = Qwen3ForCausalLM.from_pretrained(folder), 0.0, 0
    for row in rows:
        tokens, mask = torch.tensor([list(row.token_ids)]), torch.tensor(list(row.loss_mask), dtype=torch.bool)[1:]
        with torch.no_grad():
            logits = model(tokens).logits[0, :-1].log_softmax(-1)
        losses = -logits.gather(1, tokens[0, 1:, None])[:, 0][mask]
        total, count = total + float(losses.sum()), count + len(losses)
    return total / count
