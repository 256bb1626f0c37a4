"""The table `[gateway.candidate]` of a recipe: a second set of weights beside the served one, and its comparison."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from areal_actors.core.config import Config, Fraction, NonNegativeInt, PositiveInt

CandidateMode = Literal["canary", "a/b", "shadow"]
Significance = Annotated[float, msgspec.Meta(gt=0, lt=0.5)]


class CandidateSettings(Config):
    """`[gateway.candidate]`: weights that answer a share of the sessions of a served model; see docs/canary.md."""

    model: str = ""
    """Candidate, as `model` of the recipe: a checkpoint's folder or a name of the hub, with the tokenizer and the chat
    template of the served model; empty for none."""
    mode: CandidateMode = "canary"
    """`canary` promotes the candidate or rolls it back as soon as its rewards show which; `a/b` only compares, and
    `areal-actors serve promote` decides; `shadow` has the candidate answer beside the served model, unseen by users."""
    share: Fraction = 0.1
    """Share of the new sessions that the candidate answers, or that it answers beside the served model in `shadow`."""
    workers: PositiveInt = 1
    """Inference workers with the candidate's weights, the last of `actors.inference_worker.count`."""
    least_difference: float = -0.01
    """The candidate is as good as the served model once its mean reward is shown to be more than this above that of the
    served model. Below 0 it may be worse by as much (non-inferiority); from 0 on it has to be better (superiority)."""
    significance: Significance = 0.05
    """Probability, at most, that a candidate which is not as good is promoted, or one that is no worse is rolled back,
    whenever and however often it is looked at."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest reward; rewards outside count as the nearest of the two."""
    least_sessions: NonNegativeInt = 20
    """Rewarded sessions of each that a decision needs at least."""
    most_length: float | None = None
    """Largest difference of the mean length of answers, as a share of `sampling.max_tokens`, with which the candidate
    is promoted; None: the length is shown only."""
    most_truncated: float | None = None
    """Largest difference of the share of truncated answers with which it is promoted; None: it is shown only."""
    most_tool_errors: float | None = None
    """Largest difference of the share of answers with a faulty tool call with which it is promoted; None: it is shown
    only."""
