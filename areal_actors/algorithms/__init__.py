"""Algorithms that a recipe selects with `[algorithm] name`: one file each; add new ones to the union below.

`docs/algorithms.md` has a table of all of them. None of these files imports torch.
"""

from __future__ import annotations

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, CriticSettings, Need, StepTokens, TokenLosses
from areal_actors.algorithms.cispo import Cispo
from areal_actors.algorithms.dapo import Dapo
from areal_actors.algorithms.distillation import Distillation
from areal_actors.algorithms.dpo import Dpo
from areal_actors.algorithms.dr_grpo import DrGrpo
from areal_actors.algorithms.grpo import Grpo
from areal_actors.algorithms.gspo import Gspo
from areal_actors.algorithms.lite_ppo import LitePpo
from areal_actors.algorithms.m2po import M2po
from areal_actors.algorithms.ppo import Ppo
from areal_actors.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from areal_actors.algorithms.reward_model import RewardModel
from areal_actors.algorithms.rloo import Rloo
from areal_actors.algorithms.sapo import Sapo
from areal_actors.algorithms.sft import Sft

AnyAlgorithm = (
    Grpo | DrGrpo | Dapo | Gspo | Rloo | ReinforcePlusPlus | LitePpo | Sapo | M2po | Cispo | Ppo | Distillation | Sft | Dpo | RewardModel
)
"""Type of `[algorithm]`: the union of all algorithms, tagged by `name`."""

__all__ = [
    "Advantages",
    "Algorithm",
    "AnyAlgorithm",
    "Batch",
    "Cispo",
    "CriticSettings",
    "Dapo",
    "Distillation",
    "Dpo",
    "DrGrpo",
    "Grpo",
    "Gspo",
    "LitePpo",
    "M2po",
    "Need",
    "Ppo",
    "ReinforcePlusPlus",
    "RewardModel",
    "Rloo",
    "Sapo",
    "Sft",
    "StepTokens",
    "TokenLosses",
]
