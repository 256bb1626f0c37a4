"""Reports of agents that block the event loop shared by all agents of a process."""

from __future__ import annotations

from areal_actors.messages import EventLoopBlocked

REMEDY = 'make it `def run` or use runner = "subprocess"'


def format_blocked(blocked: EventLoopBlocked) -> str:
    """The report as a sentence, with the remedy."""
    where = f" at {blocked.line}" if blocked.line else ""
    inner = f" (in {blocked.innermost})" if blocked.innermost and not blocked.innermost.startswith(f"{blocked.line} ") else ""
    others = f" and {blocked.episodes - 1} more" if blocked.episodes > 1 else ""
    blocker = f"episode {blocked.episode}{others}" if blocked.episode else "an agent"
    times = f" ({blocked.times} times together)" if blocked.times > 1 else ""
    return f"{blocker} blocked the event loop for {blocked.seconds:.1f} s{times}{where}{inner}: {REMEDY}"


def merge_reports(one: EventLoopBlocked, other: EventLoopBlocked) -> EventLoopBlocked:
    """Merge two reports: the line of the longer one, and the sum of seconds."""
    longer = one if one.seconds >= other.seconds else other
    return EventLoopBlocked(
        seconds=one.seconds + other.seconds,
        line=longer.line,
        innermost=longer.innermost,
        episode=longer.episode,
        episodes=max(one.episodes, other.episodes),
        times=one.times + other.times,
    )
