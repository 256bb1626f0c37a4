"""File descriptors of a process.

The limit is raised at the start of a command, and errors for want of them are recognised.
"""

from __future__ import annotations

import errno
import resource
from contextlib import suppress
from typing import Final

MOST: Final = 65_536
"""Limit that a command asks for; programs that close every possible descriptor take long with a higher one."""
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a process, and of a machine, that has no descriptor left."""
WORDS: Final = ("Too many open files", "too many open files", "os error 24)", "os error 23)")
"""The same in texts of libraries and of nats-server."""
REMEDY: Final = (
    "raise the limit (`ulimit -Hn`; LimitNOFILE= of systemd, --ulimit nofile= of Docker), or end what holds them"
)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of this process and of those that it starts to the hard limit, at most `MOST`.

    Returns the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if (wanted := _bound_limit(hard)) > _bound_limit(soft):
        with suppress(OSError, ValueError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """Returns the number of descriptors that this process may have, at most `MOST`."""
    return _bound_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def highest_descriptor_limit() -> int:
    """Returns the number of descriptors that a child may ask for, as nats-server does at its start; at most `MOST`."""
    return _bound_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def is_out_of_descriptors(error: BaseException) -> bool:
    """True if an operation failed for want of descriptors, of the process or of the machine."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in EXHAUSTED
    return any(words in str(error) for words in WORDS)


def _bound_limit(limit: int) -> int:
    return MOST if limit == resource.RLIM_INFINITY else min(limit, MOST)
