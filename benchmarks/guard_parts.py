"""Reward and algorithm of `guard.py`: a trainer that is slower than generation, whatever the machine.

Each scored episode touches the file of the environment variable `GUARD_MARK`, and a step begins when no episode was
scored for `QUIET_SECONDS`. By then generation has used all of the capacity that the staleness gate grants, so the
trained tokens are as old as its bound allows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_actors.rewards.gsm8k import gsm8k
from areal_actors.training.algorithms import Grpo

if TYPE_CHECKING:
    from torch import Tensor

QUIET_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""A step begins after this time in any case."""


def marked_gsm8k(task: Mapping[str, Any], output: str) -> float:
    """The reward of recipes/gsm8k_grpo.toml."""
    Path(os.environ["GUARD_MARK"]).touch()
    return gsm8k(task, output)


class PatientGrpo(Grpo):
    """GRPO, in steps that wait for generation."""

    def compare(self, rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
        """Waits, then compares as GRPO does."""
        mark, deadline = Path(os.environ["GUARD_MARK"]), time.monotonic() + LONGEST_SECONDS
        while time.time() - mark.stat().st_mtime < QUIET_SECONDS and time.monotonic() < deadline:
            time.sleep(QUIET_SECONDS / 10)
        return super().compare(rewards, samples, groups)
