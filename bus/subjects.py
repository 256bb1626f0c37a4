"""Subjects: how names become addresses, and which subjects a pattern means."""

from __future__ import annotations

import re

_RUN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_WILDCARDS = ("*", ">")


def matches(pattern: str, subject: str) -> bool:
    """NATS wildcards: `*` stands for one token, a trailing `>` for one or more."""
    if pattern in (">", subject):
        return True
    wanted, got = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(got) <= len(wanted):
            return False
        got = got[: len(wanted)]
    return len(wanted) == len(got) and all(want in ("*", have) for want, have in zip(wanted, got, strict=True))


def check_run(run: str) -> str:
    """A run's name, if it can stand in a subject, a stream's name and a folder's.

    Raises:
        ValueError: it cannot; the message says what can.
    """
    if not _RUN.fullmatch(run):
        raise ValueError(f"run name {run!r}: use 1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or a digit")
    return run


def check_token(what: str, name: str) -> str:
    """A consumer's, group's or instance's name, if it can be one token of a subject.

    Raises:
        ValueError: it cannot; `what` says whose name it is.
    """
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{what} {name!r}: use letters, digits, '-' and '_' only")
    return name


def check_key(key: str) -> str:
    """A key of the run's bucket: tokens joined by dots; a leading underscore is for the bus itself.

    Raises:
        ValueError: it is not.
    """
    if key.startswith("_"):
        raise ValueError(f"bucket key {key!r}: keys that begin with '_' are the bus's own")
    for token in key.split("."):
        check_token("bucket key", token)
    return key


def check_pattern(pattern: str) -> str:
    """A pattern of subjects.

    Raises:
        ValueError: a token is neither a name nor a wildcard, or `>` is not the last token.
    """
    tokens = pattern.split(".")
    if ">" in tokens[:-1]:
        raise ValueError(f"pattern {pattern!r}: '>' can only be the last token")
    for token in tokens:
        if token not in _WILDCARDS:
            check_token("subject token", token)
    return pattern


def log_stream(run: str) -> str:
    """The stream that keeps a run's events."""
    return f"AREAL_{run}_LOG"


def work_stream(run: str) -> str:
    """The stream that keeps a run's work until it is done."""
    return f"AREAL_{run}_WORK"


def values_bucket(run: str) -> str:
    """The key-value bucket of a run."""
    return f"areal_{run}"


def work_consumer(subject: str) -> str:
    """The durable consumer from which all workers take work of this subject."""
    return subject.replace(".", "-")


def position_key(consumer: str) -> str:
    """Where the run's bucket keeps how far a durable consumer has come."""
    return f"_position.{consumer}"


def inbox_of(user: str) -> str:
    """Where everything arrives that is sent to one user alone: below `answers` what others of the run answer, below `server` the rest."""
    return f"_INBOX.{user}"
