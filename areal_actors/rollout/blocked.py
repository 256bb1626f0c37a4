"""Reports of agents that block the event loop shared by all agents of a process."""

from __future__ import annotations

from areal_actors.messages import EventLoopBlocked

REMEDY = 'make it `def run` or use runner = "subprocess"'
CLIENT_REMEDY = (
    "make the client once, in the agent's `__init__`, or take `http_client`: each new one loads certificates"
)
CLIENT_FILES = ("ssl.py", "_client.py", "_base_client.py", "_ssl.py", "client.py")
CLIENT_FUNCTIONS = (
    "__init__",
    "load_default_certs",
    "load_verify_locations",
    "create_default_context",
    "create_ssl_context",
    "__new__",
)
"""Files and functions that run while a client of an API is made."""


def remedy_of(blocked: EventLoopBlocked) -> str:
    """The remedy that fits the line."""
    file, _, function = blocked.innermost.partition(" in ")
    makes_client = file.partition(":")[0] in CLIENT_FILES and function in CLIENT_FUNCTIONS
    return CLIENT_REMEDY if makes_client else REMEDY


def format_blocked(blocked: EventLoopBlocked) -> str:
    """The report as a sentence, with the remedy."""
    where = f" at {blocked.line}" if blocked.line else ""
    inner = (
        f" (in {blocked.innermost})"
        if blocked.innermost and not blocked.innermost.startswith(f"{blocked.line} ")
        else ""
    )
    more_episodes = f" and {blocked.episodes - 1} more" if blocked.episodes > 1 else ""
    blocker = f"episode {blocked.episode}{more_episodes}" if blocked.episode else "an agent"
    times = f" ({blocked.times} times together)" if blocked.times > 1 else ""
    return f"{blocker} blocked the event loop for {blocked.seconds:.1f} s{times}{where}{inner}: {remedy_of(blocked)}"


def merge_reports(first: EventLoopBlocked, second: EventLoopBlocked) -> EventLoopBlocked:
    """Merge two reports: the line of the longer one, and the sum of seconds."""
    longer = first if first.seconds >= second.seconds else second
    return EventLoopBlocked(
        seconds=first.seconds + second.seconds,
        line=longer.line,
        innermost=longer.innermost,
        episode=longer.episode,
        episodes=max(first.episodes, second.episodes),
        times=first.times + second.times,
    )
