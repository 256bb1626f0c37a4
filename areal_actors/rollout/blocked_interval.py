"""An interval in which an event loop did not answer, with samples of its thread's stack."""

from __future__ import annotations

from collections import Counter

from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout.stack import CodeLocation


class BlockedInterval:
    """An interval in which the loop did not answer, with stack samples."""

    def __init__(self, began: float, waited: float = 0.0) -> None:
        """`waited`: the thread's `processor_wait` when it began; on a busy machine it waits without being blocked."""
        self.began, self.waited = began, waited
        self.seconds = 0.0
        self._seen: Counter[tuple[str, str]] = Counter()
        self._inner: dict[tuple[str, str], CodeLocation] = {}

    def add_sample(self, at: CodeLocation | None, episode: str) -> None:
        """Add a stack sample of the thread, in this episode.

        A loop that waits in its own code lacks a processor and is not blocked.
        """
        if at is not None and not at.is_event_loop:
            self._seen[at.line, episode] += 1
            self._inner[at.line, episode] = at

    def has_line(self) -> bool:
        """True if a sample shows a line that blocks the loop."""
        return bool(self._seen)

    def count_of_worst(self) -> int:
        """Number of samples of the line sampled most often; 0 without a sample."""
        return max(self._count_lines().values(), default=0)

    def report(self) -> EventLoopBlocked:
        """A report of the line sampled most often, over all episodes; requires a sample. Thread-safe."""
        seen = self._seen.most_common()
        worst = self._count_lines().most_common(1)[0][0]
        episodes = [episode for (line, episode), _ in seen if line == worst]
        innermost = self._inner[worst, episodes[0]].innermost
        return EventLoopBlocked(
            seconds=self.seconds, line=worst, innermost=innermost, episode=episodes[0], episodes=len(episodes)
        )

    def _count_lines(self) -> Counter[str]:
        lines: Counter[str] = Counter()
        for (line, _), count in self._seen.items():
            lines[line] += count
        return lines
