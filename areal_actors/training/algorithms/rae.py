"""Role-conditioned advantage estimation (RAE; SPIRAL, arXiv:2506.24119, section 3.3).

In a game the expected reward depends on the role, such as the side that moves first. The baseline of an episode is the
moving average of the rewards of its role; no group is needed, and `group_size = 1` is the paper's:

    A = R - b(game, role)        then        b(game, role) <- decay * b(game, role) + (1 - decay) * R

The game is the source of a mixture, the role a field of the task, and with `task.baseline_over = "roles"` also that of
the call, as for two players with one policy. The baselines are folded over the log (`batching/role_baselines.py`).

Default that differs from the paper: PPO's clipped surrogate (as the authors' code) with the mean over the tokens of the
step; REINFORCE's sum over an episode is `loss_aggregation = "constant"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from areal_actors.core.config import PositiveInt
from areal_actors.core.errors import UntrainableBatch
from areal_actors.training.algorithms.base import Advantages, Problem, StepTokens
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy
from areal_actors.training.algorithms.shaping import Shaping


class Rae(ClippedPolicy, tag="rae"):
    """`[algorithm] name = "rae"`.

    Advantage: reward above the moving average of its role
    Surrogate: clipped token ratio × behaviour weight
    """

    group_size: PositiveInt = 1
    """Episodes per task; they share no baseline but that of their role."""
    role_field: str = "role"
    """Field of a task, a column of its row, with the role of its episodes: a text or a whole number. Empty if tasks
    have none: one baseline for all, or for each source of a mixture."""
    baseline_decay: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.95
    """Decay α of a baseline at each episode of its role; it begins at 0."""
    normalize_advantages: bool = False
    """Normalize advantages over all episodes of the step."""

    @property
    def compares_groups(self) -> bool:
        """False: the baseline is that of the role."""
        return False

    @property
    def scales_by_std(self) -> bool:
        """False: differences are not scaled."""
        return False

    def problems(self) -> Iterator[Problem]:
        """Yields also the problem of rewards that are shaped after they were averaged."""
        for name in ("bias", "scale", "clip"):
            if (value := getattr(self.shaping, name)) != getattr(Shaping(), name):
                fault = f"found {value}, but the baselines of rae are averages of rewards as they were given"
                yield ("shaping", name), f"{fault}; leave it out, or have the reward return what is to be learnt"
        yield from super().problems()

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns rewards, less the KL penalty, above the baseline of their role.

        Raises:
            UntrainableBatch: the batch has no baselines.
        """
        if step.baselines is None:
            raise UntrainableBatch(
                "an episode of the batch has no role-wise baseline, as it was recorded or batched without"
                ' algorithm.name = "rae"; start a new run with it'
            )
        compared = self.kl.subtract_kl(step, step.rewards) - step.baselines
        return self.finalize(step, compared[step.calls])
