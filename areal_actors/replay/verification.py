"""The result of `areal-actors audit --verify`: what was checked, forgeries and their places, what may be missed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

SHARES = (0.01, 0.1, 0.5)
"""Shares of forged items for which the probability of a miss is printed."""


class Drawn(msgspec.Struct, frozen=True):
    """Items that were drawn at random and computed again."""

    what: str
    """`steps` or `rewards`."""
    population: int
    drawn: int

    def miss(self, share: float) -> float:
        """Probability that none of the drawn items is among a share of forged ones."""
        return (1.0 - share) ** self.drawn if self.drawn < self.population else 0.0

    def sentence(self) -> str:
        """Returns the probabilities of a miss as a sentence."""
        if self.drawn >= self.population:
            return f"all {self.population:,} {self.what} were computed again: a forged one is not missed"
        shares = ", ".join(f"{share:.0%}: {self.miss(share):.2g}" for share in SHARES)
        return (
            f"{self.drawn:,} of {self.population:,} {self.what} drawn; a forger who altered this share of them is"
            f" missed with probability (1 - m/n)^k: {shares}"
        )


class Verification(msgspec.Struct):
    """All checks of one checkpoint."""

    checkpoint: str
    proof: str
    """Digest of the proof."""
    seed: int
    """Seed of the draws, which repeats them."""
    checked: list[str] = []
    """Comparisons that found no difference."""
    left_out: list[str] = []
    """Comparisons that are not possible here, with the reason."""
    forged: list[str] = []
    """Differences, with their places."""
    drawn: list[Drawn] = []

    def to_text(self) -> str:
        """Returns the result as lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.checkpoint}: proof {self.proof}, seed of the draws {self.seed}"
        yield from (f"  equal     {sentence}" for sentence in self.checked)
        yield from (f"  left out  {sentence}" for sentence in self.left_out)
        yield from (f"  DIFFERS   {sentence}" for sentence in self.forged)
        yield from (f"  {drawn.sentence()}" for drawn in self.drawn)
        yield "verify: " + (
            f"{len(self.forged)} differences: this checkpoint did not come about as its log states"
            if self.forged
            else "nothing differs from what log, recipe, code and data state"
        )
