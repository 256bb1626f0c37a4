"""The algorithms that a recipe can name under `[algorithm] name`. One file each; a new one joins the union below.

| name | advantage                         | loss                                  | reduction                       |
|------|-----------------------------------|---------------------------------------|---------------------------------|
| grpo | group mean, and std unless told   | clipped ratio × capped behaviour      | tokens, sequences or a constant |
|      |                                   | weight (decoupled PPO), or plain PPO  |                                 |

`Sft` stands beside them for the warm start of the embedded model: it learns from demonstrations, not from episodes.
None of these files loads torch.
"""

from __future__ import annotations

from areal_actors.algorithms.base import Algorithm, Batch, TokenLosses
from areal_actors.algorithms.grpo import Grpo
from areal_actors.algorithms.sft import Sft

AnyAlgorithm = Grpo
"""What `[algorithm]` decodes into: the union of all algorithms that learn from rewards, told apart by `name`."""

__all__ = ["Algorithm", "AnyAlgorithm", "Batch", "Grpo", "Sft", "TokenLosses"]
