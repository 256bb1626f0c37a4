"""An algorithm from a user's file: its settings, what is wrong with them, and that it trains."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from support.tiny_trainer import make_trainer, sequences_of, weights, write_model

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.training.algorithms import AnyAlgorithm, Grpo
from areal_actors.training.algorithms.custom import CustomAlgorithm

ROOT = Path(__file__).parent.parent
NO_CUDA = CudaDevices(0, "no CUDA device")
MAIN, OVER = ROOT / "recipes/gsm8k_grpo.toml", ROOT / "recipes/custom_algorithm.toml"
OWN = """
from areal_actors.training.algorithms import Advantages, Algorithm, Grpo, Sft, TokenLosses

class Reinforce(Algorithm, tag="reinforce"):
    scale: float = 1.0

    def advantages(self, step):
        return Advantages(tokens=(self.scale * step.rewards[step.calls]).to(step.behaviour.dtype))

    def loss(self, batch, logp):
        return TokenLosses(losses=-batch.advantages * logp)

class Compared(Grpo):
    pass

class FromExamples(Sft):
    pass

class Unrelated:
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a user's file, as the current one."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "agents").symlink_to(ROOT / "agents")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def custom(name, **options):
    return CustomAlgorithm(path=f"own.py:{name}", options=options)


def test_the_recipe_names_a_class_and_its_settings(monkeypatch):
    monkeypatch.chdir(ROOT)
    algorithm = load([MAIN, OVER], ["algorithm.options.kl.coefficient=0.5"], NO_CUDA).recipe.algorithm
    own = algorithm.resolve()
    assert isinstance(own, Grpo)
    assert (type(own).__name__, own.threshold, own.clip, own.kl.coefficient) == ("PositiveOnly", 0.1, 0.3, 0.5)
    assert own.group_size == algorithm.group_size == 8
    assert algorithm.models == {"reference": "initial"}
    there_and_back = msgspec.json.decode(msgspec.json.encode(algorithm), type=AnyAlgorithm)
    assert msgspec.to_builtins(there_and_back.resolve()) == msgspec.to_builtins(own)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["algorithm.path=own.py:Grop"], "`algorithm.path`: `own.py:Grop`: "),
        (["algorithm.path=nowhere.py:Grpo"], "there is no file "),
        (
            ["algorithm.path=own.py:Unrelated"],
            "`own.py:Unrelated` is not a subclass of areal_actors.training.algorithms.Algorithm",
        ),
        (
            ["algorithm.path=own.py:FromExamples"],
            '`own.py:FromExamples` has head = "tokens" and learns_from = "examples"',
        ),
        (
            ["algorithm.path=own.py:Reinforce", "algorithm.options.scales=2"],
            "`algorithm.options`: Object contains unknown field `scales`",
        ),
        (
            ["algorithm.path=own.py:Reinforce", "algorithm.options.scale=high"],
            "`algorithm.options.scale`: Expected `float`, got `str`",
        ),
        (
            ["algorithm.path=own.py:Reinforce", "algorithm.options.group_size=2"],
            "which is a setting of every algorithm",
        ),
        (
            ["algorithm.path=own.py:Compared", "algorithm.group_size=1"],
            "`algorithm.group_size`: found 1, but an advantage compares",
        ),
        (
            ["algorithm.path=own.py:Compared", 'algorithm.options.kl={coefficient=0.1, reference="./gone"}'],
            '`algorithm.options.kl.reference`: found "./gone", but there is no such folder',
        ),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_is_wrong_with_a_class_is_refused_before_anything_starts(settings, complaint):
    with pytest.raises(RecipeError) as refused:
        load([MAIN], ["algorithm.name=custom", *settings], NO_CUDA)
    assert complaint in str(refused.value)


def test_the_path_is_required(own):
    with pytest.raises(RecipeError, match=r"`algorithm.path`"):
        load([MAIN], ["algorithm.name=custom"], NO_CUDA)


@pytest.mark.usefixtures("own")
def test_a_class_trains_as_the_same_algorithm_of_the_package_does(tmp_path):
    folder = write_model(tmp_path)
    package, own = make_trainer(folder, Grpo(clip=0.1)), make_trainer(folder, custom("Compared", clip=0.1))
    sequences = sequences_of(package, off=0.3)
    assert package.step(sequences) == own.step(sequences)
    assert all(torch.equal(weight, weights(own)[name]) for name, weight in weights(package).items())


@pytest.mark.usefixtures("own")
def test_the_settings_of_a_class_have_an_effect(tmp_path):
    folder = write_model(tmp_path)
    once, twice = (make_trainer(folder, custom("Reinforce", scale=scale)) for scale in (1.0, 2.0))
    sequences = sequences_of(once)
    assert twice.step(sequences)["loss"] == pytest.approx(2 * once.step(sequences)["loss"], rel=1e-5)
