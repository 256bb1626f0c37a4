"""Algorithms that a recipe selects with `[algorithm] name`: one file each; add new ones to the union below.

`docs/algorithms.md` has a table of all of them. None of these files imports torch.
"""

from __future__ import annotations

from areal_actors.training.algorithms.base import (
    Advantages,
    Algorithm,
    Batch,
    CriticSettings,
    Need,
    StepTokens,
    TokenLosses,
)
from areal_actors.training.algorithms.cispo import Cispo
from areal_actors.training.algorithms.custom import CustomAlgorithm
from areal_actors.training.algorithms.dapo import Dapo
from areal_actors.training.algorithms.distillation import Distillation
from areal_actors.training.algorithms.dpo import Dpo
from areal_actors.training.algorithms.dr_grpo import DrGrpo
from areal_actors.training.algorithms.gmpo import Gmpo
from areal_actors.training.algorithms.grpo import Grpo
from areal_actors.training.algorithms.gspo import Gspo
from areal_actors.training.algorithms.gspo_token import GspoToken
from areal_actors.training.algorithms.lite_ppo import LitePpo
from areal_actors.training.algorithms.m2po import M2po
from areal_actors.training.algorithms.offline import Offline
from areal_actors.training.algorithms.ppo import Ppo
from areal_actors.training.algorithms.rae import Rae
from areal_actors.training.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from areal_actors.training.algorithms.reward_model import RewardModel
from areal_actors.training.algorithms.rloo import Rloo
from areal_actors.training.algorithms.sapo import Sapo
from areal_actors.training.algorithms.sft import Sft

AnyAlgorithm = (
    (Grpo | DrGrpo | Dapo | Gspo | GspoToken | Gmpo | Rloo | ReinforcePlusPlus | LitePpo | Sapo | M2po | Cispo)
    | (Rae | Ppo | Distillation)
    | (Sft | Dpo | RewardModel | Offline)
    | CustomAlgorithm
)
"""Type of `[algorithm]`: the union of all algorithms, tagged by `name`."""

__all__ = [
    "Advantages",
    "Algorithm",
    "Batch",
    "Cispo",
    "CriticSettings",
    "CustomAlgorithm",
    "Dapo",
    "Distillation",
    "Dpo",
    "DrGrpo",
    "Gmpo",
    "Grpo",
    "Gspo",
    "GspoToken",
    "LitePpo",
    "M2po",
    "Need",
    "Ppo",
    "Rae",
    "ReinforcePlusPlus",
    "RewardModel",
    "Rloo",
    "Sapo",
    "Sft",
    "StepTokens",
    "TokenLosses",
]
