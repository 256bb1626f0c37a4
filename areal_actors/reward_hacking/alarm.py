"""An alarm of the detector, with a pair of episodes as an example."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

FALSE_ALARMS = 0.01
"""Bound of the probability of an alarm in a clean run."""


class HackAlarm(msgspec.Struct, frozen=True):
    """A feature that is paid whatever the task."""

    step: int
    """Step after which it was found, from 1."""
    feature: str
    before: float
    """Share of the outputs with it in the first steps."""
    now: float
    """The same in the last steps."""
    reward_with: float
    """Mean reward with it, over groups that have both kinds of outputs."""
    reward_without: float
    fit_with: float
    """Mean similarity of rewarded outputs of one task beyond that of different tasks, of outputs with the feature."""
    fit_without: float
    probability: float
    """Probability of such a difference of fit by chance, for all looks and features together."""
    example: tuple[str, str]
    """Episodes: one with the feature, and one of the same group, or task, without it."""
    texts: tuple[str, str]

    def lines(self) -> Iterator[str]:
        """Yields the alarm as lines of text."""
        yield (
            f"step {self.step}: outputs with {self.feature} are paid whatever the task: {self.before:.0%} of the"
            f" outputs of the first steps have it, {self.now:.0%} of the last"
        )
        yield (
            f"  reward with it {self.reward_with:.3g}, without it {self.reward_without:.3g}, in the same groups; fit of"
            f" rewarded outputs to their task {self.fit_with:.2g} with it, {self.fit_without:.2g} without"
            f" (p = {self.probability:.1g}; false alarms: at most {FALSE_ALARMS:.0%} of clean runs)"
        )
        for episode, text, kind in zip(self.example, self.texts, ("with", "without"), strict=True):
            yield f"  {kind} it, episode {episode}: {_short(text)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f"{line[:160]}{'…' if len(line) > 160 else ''}"
