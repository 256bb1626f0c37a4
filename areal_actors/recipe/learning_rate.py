"""Learning rates: derived for pretrained models where none is stated, and refused where they would destroy one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from areal_actors.core.layers import is_stated
from areal_actors.core.problems import Problems
from areal_actors.recipe.model_size import is_pretrained, parameters
from areal_actors.recipe.recipe import Recipe

RL_LR = 1e-6
"""Derived `trainer.optimizer.lr` of a pretrained model of `RL_PARAMETERS` or more; smaller ones get more, in inverse
proportion."""
RL_PARAMETERS = 1_500_000_000
MAX_FACTOR = 10.0
CRITIC_LR = 1e-5
DERIVED_LR = {"sft": 1e-5, "reward_model": 1e-5, "dpo": 5e-7}
"""By algorithm; all others learn from rewards."""
LORA_FACTOR = 20
"""Adapters take a higher rate than full weights (Schulman et al., "LoRA Without Regret", 2025: about 10 to 20
times)."""
REFUSED_LR = {"sft": 3e-3, "reward_model": 1e-3, "dpo": 1e-4}
REFUSED_RL_LR = 2e-4
"""Rates of Adam from which a pretrained model forgets language within a few steps: two steps of 8e-4 moved SmolLM2-135M
by 54 nats a token. Adam moves every weight by about its rate in each step, whatever the gradient."""
HIGHEST_LR = 10.0
"""Highest rate of any optimizer; even SGD diverges with higher ones."""
ADAM = ("adam", "adamw", "muon")


def with_learning_rate(recipe: Recipe, stated: Mapping[str, Any]) -> Recipe:
    """Derive the learning rates of a pretrained model: those of the embedded model would destroy it in a few steps."""
    if not is_pretrained(recipe.model):
        return recipe
    critic = recipe.algorithm.critic if "critic" in recipe.algorithm.__struct_fields__ else None
    if critic is not None and not is_stated(stated, ("algorithm", "critic", "lr")):
        recipe = replace(recipe, algorithm=replace(recipe.algorithm, critic=replace(critic, lr=CRITIC_LR)))
    if is_stated(stated, ("trainer", "optimizer", "lr")):
        return recipe
    rate = _usual_rate(recipe)
    optimizer = replace(recipe.trainer.optimizer, lr=rate * LORA_FACTOR if recipe.trainer.lora else rate)
    return replace(recipe, trainer=replace(recipe.trainer, optimizer=optimizer))


def learning_rate_problems(recipe: Recipe) -> Problems:
    """Yields key and complaint of a rate that destroys a pretrained model, unless it is allowed."""
    optimizer = recipe.trainer.optimizer
    if optimizer.lr > HIGHEST_LR:
        yield (
            ("trainer", "optimizer", "lr"),
            f"found {optimizer.lr:g}, with which no model learns; write {_usual_rate(recipe):g} or less",
        )
        return
    if optimizer.name not in ADAM or optimizer.allow_high_lr or not is_pretrained(recipe.model):
        return
    most = REFUSED_LR.get(_algorithm(recipe), REFUSED_RL_LR) * (LORA_FACTOR if recipe.trainer.lora else 1)
    if optimizer.lr > most:
        remedy = (
            f"write {_usual_rate(recipe):g} to {most / 4:.1g}, leave it out, or set trainer.optimizer.allow_high_lr ="
            " true"
        )
        yield (
            ("trainer", "optimizer", "lr"),
            f"found {optimizer.lr:g}, which destroys a pretrained model in a few steps; {remedy}",
        )


def _usual_rate(recipe: Recipe) -> float:
    """Rate of full weights by algorithm and size, with one digit; that of a large model if the size is unknown."""
    if rate := DERIVED_LR.get(_algorithm(recipe)):
        return rate
    factor = min(MAX_FACTOR, max(1.0, RL_PARAMETERS / (parameters(recipe) or RL_PARAMETERS)))
    return float(f"{RL_LR * factor:.1g}")


def _algorithm(recipe: Recipe) -> str:
    return str(type(recipe.algorithm).__struct_config__.tag)
