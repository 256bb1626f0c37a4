"""`[algorithm.spans]`: advantages of tokens from rewards of spans of completions.

A reward function or an agent may reward parts of a completion. Rewards r_j of one name are compared among the spans of
their group, by the comparison of the algorithm itself; for GRPO this is process supervision (arXiv:2402.03300, section
4.1.3), with spans in place of steps:

    z_j = (r_j - mean of r in the group) / std of r in the group
    A(token) = A(call) + Σ_j w(name of j) z_j        over the spans j that credit the token

With `reach = "span"` a span credits its own tokens; with `"before"`, as in the paper, also the tokens of its call
before it, and the calls before its own by their share under `task.turn_discount`. `baseline = "none"` takes z_j = r_j,
for rewards that only occur with one value, such as a penalty: compared with one another they are all 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from areal_actors.core.config import NonNegativeFloat
from areal_actors.training.algorithms.base import Component, Problem, SpanColumns, StepTokens
from areal_actors.training.algorithms.groups import has_signal

if TYPE_CHECKING:
    from torch import Tensor

Compare = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]


class Spans(Component):
    """Credit of tokens by rewards of spans; without such rewards it changes nothing."""

    reach: Literal["span", "before"] = "span"
    """Tokens that a reward credits: those of its `span`, or also those `before` it."""
    baseline: Literal["group", "none"] = "group"
    """Comparison: with the spans of the same name in the `group`, or `none`, which takes rewards as they are."""
    weights: dict[str, NonNegativeFloat] = {}
    """Weights of the credits by name of the spans; 1 for others."""

    def problems(self) -> Iterator[Problem]:
        """Yields a weight without effect."""
        for name, weight in self.weights.items():
            if not weight:
                yield ("spans", "weights", name), "found 0, which ignores these rewards; leave them out of the reward"

    def credit(self, step: StepTokens, advantages: Tensor, compare: Compare) -> Tensor:
        """Returns advantages with the credits of spans: float64 `[tokens]` → float64 `[tokens]`."""
        if step.spans is None:
            return advantages
        values = self._values(step.spans, compare)
        credited = advantages + 0.0
        for place in step.spans.places:
            if place.is_carried and self.reach == "span":
                continue
            start = place.start if self.reach == "span" or place.is_carried else place.before
            credited[start : place.end] += place.share * values[place.span]
        return credited

    def _values(self, spans: SpanColumns, compare: Compare) -> list[float]:
        """Returns the weighted credit of each span."""
        compared = spans.rewards
        if self.baseline == "group":
            compared = compare(spans.rewards, _numbers(spans), spans.groups)
        return [self.weights.get(name, 1.0) * value for name, value in zip(spans.names, compared.tolist(), strict=True)]

    def metrics(self, step: StepTokens) -> dict[str, float]:
        """Returns metrics by name of the spans; empty without spans."""
        if step.spans is None:
            return {}
        spans, metrics = step.spans, dict[str, float]()
        varied = has_signal(spans.rewards, spans.groups).tolist()
        groups, rewards, episodes = spans.groups.tolist(), spans.rewards.tolist(), len(step.groups)
        for name in dict.fromkeys(spans.names):
            own = [place for place, other in enumerate(spans.names) if other == name]
            signal = {groups[place]: varied[place] for place in own}
            metrics[f"span_reward/{name}"] = sum(rewards[place] for place in own) / len(own)
            metrics[f"spans/{name}"] = len(own) / episodes
            metrics[f"span_constant/{name}"] = 1.0 - sum(signal.values()) / len(signal)
        return metrics


def _numbers(spans: SpanColumns) -> Tensor:
    """Returns the numbers of the spans: int64 `[spans]`."""
    return spans.groups.new_ones(len(spans.groups)).cumsum(0) - 1
