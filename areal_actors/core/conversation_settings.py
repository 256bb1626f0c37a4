"""The table `[log.conversations]` of a recipe: conversations of episodes that are not trained."""

from __future__ import annotations

from typing import Literal

from areal_actors.core.config import Config, NonNegativeInt, PositiveInt

KeptKind = Literal["held_out", "abandoned", "rejected", "surplus", "unrewarded"]
"""Kind of episode that is not trained."""


class ConversationSettings(Config):
    """`[log.conversations]`: conversations in the log of episodes that have no trajectory.

    They are kept as those of trained episodes are, with token ids and log-probabilities, and are never trained.
    """

    keep: tuple[KeptKind, ...] = ("held_out", "abandoned", "unrewarded")
    """Episodes whose conversations the log has beside those of trained ones: `held_out` (evaluation), `abandoned`
    (every failed attempt), `rejected` (by the recipe), `surplus` (still running when the last batch was formed),
    `unrewarded` (sessions of external agents that ended without a reward, for feedback that comes later). Empty:
    none."""
    max_episode_kb: PositiveInt = 1024
    """Size of one conversation in KiB, at 8 bytes per sampled token, 4 per prompt token and 256 per call, from which on
    its earliest calls are left out. The log is compressed, so that it grows by less."""
    max_mb: NonNegativeInt = 512
    """Size of all these conversations of the run in MiB, counted in the same way, beyond which no further one is kept;
    the log then has `ConversationsLimited`, once."""
