"""Models of judges outside of a run: a server, or the engine of a frozen policy, started in this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from areal_actors.core.lazy import LazyModule
from areal_actors.recipe.policies import policy_recipe
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards.judge.judge_client import JudgeModel, UrlModel
from areal_actors.rewards.judge.settings import ModelJudge

if TYPE_CHECKING:
    from areal_actors.policies import checkpoint_judge
    from areal_actors.processes import recipe_model
else:
    checkpoint_judge = LazyModule("areal_actors.policies.checkpoint_judge")
    recipe_model = LazyModule("areal_actors.processes.recipe_model")


def model_outside_run(recipe: Recipe, judge: ModelJudge) -> JudgeModel:
    """Returns the model of a judge with a `url` or a `policy`."""
    if not judge.policy:
        return UrlModel(judge)
    of_policy = policy_recipe(recipe, judge.policy)
    located = of_policy if recipe.policies[judge.policy].model else recipe  # the embedded one is made once
    locate = partial(recipe_model.model_of, located)
    settings = recipe.policies[judge.policy]
    return checkpoint_judge.CheckpointModel(judge, settings, of_policy.engine_settings(), locate)
