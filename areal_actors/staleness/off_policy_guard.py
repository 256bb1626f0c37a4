"""Watches how far the weights have moved from those that sampled the trained tokens: `[staleness_gate.guard]`.

A step is off policy if one of its metrics is outside of its band. If it is the effective sample size or the KL, the
staleness bound falls to 0, which is synchronous training: for new groups (by the gate) and for trained tokens (by the
batcher). It grows by one after every `settle_steps` steps in a row within these bands, up to
`staleness_gate.max_staleness`.

To 0 at once, since damage is done in a few steps, and slowly back, since steps at a low bound do not show what a higher
one would do: docs/benchmarks.md has the runs. `masked_frac` never lowers the bound, because a lower bound masks more
tokens.

The guard is an immutable value: it returns the next one after each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from areal_actors.core.config import Config, Fraction, NonNegativeFloat, PositiveInt
from areal_bus.message import FrozenMeta


class OffPolicyGuardConfig(Config):
    """`[staleness_gate.guard]`: bands of the metrics that show how far the trained tokens are from the weights."""

    action: Literal["off", "report", "tighten"] = "report"
    """`report` publishes an event when steps leave the bands, and when they return. `tighten` also lowers the staleness
    bound to 0, which is synchronous training, and raises it again step by step. `off` does neither."""
    min_effective_sample_size: Fraction = 0.3
    """Smallest effective sample size of the trained tokens."""
    max_approx_kl: NonNegativeFloat = 0.5
    """Largest KL between the weights that sampled the trained tokens and the current ones, in nats per token."""
    max_masked_frac: Fraction = 0.5
    """Largest share of sampled tokens that are too old to be trained; reported only, since a lower bound masks more of
    them."""
    settle_steps: PositiveInt = 64
    """Number of steps in a row within the bands of effective sample size and KL after which the bound grows by one."""

    def outside(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yields a sentence for each metric of a step that is outside of its band.

        A step without a metric is inside.
        """
        yield from self.drift_sentences(metrics)
        masked = metrics.get("masked_frac")
        if masked is not None and not masked <= self.max_masked_frac:
            yield f"masked_frac {masked:.3g}, at most {self.max_masked_frac:g}"

    def drift_sentences(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yields those sentences that a lower staleness bound can help.

        In these the weights have moved too far from those that sampled.
        """
        size, divergence = metrics.get("effective_sample_size"), metrics.get("approx_kl")
        if size is not None and not size >= self.min_effective_sample_size:
            yield f"effective_sample_size {size:.3g}, at least {self.min_effective_sample_size:g}"
        if divergence is not None and not divergence <= self.max_approx_kl:
            yield f"approx_kl {divergence:.3g}, at most {self.max_approx_kl:g}"


class OffPolicyGuard(msgspec.Struct, metaclass=FrozenMeta):
    """The bound, and what it follows from."""

    max_staleness: int
    """The bound."""
    step: int = 0
    """Latest step that was judged; a step that a restarted trainer repeats counts once."""
    off_policy: bool = False
    inside: int = 0
    """Steps in a row whose weights had not moved too far."""

    def after(self, step: int, metrics: Mapping[str, float], config: OffPolicyGuardConfig, most: int) -> OffPolicyGuard:
        """Returns the guard after a step with these metrics, counted from 1; `most` is the bound of the recipe."""
        if step <= self.step or config.action == "off":
            return self
        moved = any(config.drift_sentences(metrics))
        inside = 0 if moved else self.inside + 1
        seen = msgspec.structs.replace(self, step=step, off_policy=any(config.outside(metrics)), inside=inside)
        if config.action != "tighten":
            return seen
        if moved:
            return msgspec.structs.replace(seen, max_staleness=0)
        eases = inside >= config.settle_steps and self.max_staleness < most
        return msgspec.structs.replace(seen, max_staleness=self.max_staleness + 1, inside=0) if eases else seen
